"""A script and its engine: waiting rounds, overlapping rounds, clock pace; scripts that start, end, or do not fit the swarm."""

import math
import os
import threading
import time

import pytest
import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.vector import flatten, layout
from starling.node.config.schema import CompressSection, OptimizerSection
from starling.node.engine.script.driver import AWAY_S
from starling.node.rpc import calls
from starling.node.script.member import Member
from starling.node.script.optimizers import unwrapped
from starling.node.script.parts import Parts
from tests.harness.engines import done, every, exchange, manifest, opened, x_of
from tests.harness.scripts import Scripted, Up, pieces, replayed, running
from tests.node.script.loops import SAM

ROUNDS, STEPS = 24, 4
WHOLE = CompressSection(select="full", request="identity", response="identity")


def agreement(kind="sgd", mix="pet", lr=0.01, **rounds):
    return manifest(
        "digits",
        2,
        mix=mix,
        optimizer=OptimizerSection(kind=kind, lr=lr),
        compress=WHOLE,
        **{"local_steps": STEPS, "rounds": ROUNDS} | rounds,
    )


def optimizers(kind):
    made = {"sgd": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9), "adamw": lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.0)}
    return lambda model, lr: [made[kind](model.parameters(), lr)]


def finish(engine):
    done(engine, calls.Save(final=True))
    done(engine, calls.Stop())


def overlapped(engines):
    """Run rounds whose local steps overlap the exchange of the round before."""
    every(engines, calls.Train(0, STEPS))
    for number in range(ROUNDS):
        following = {name: engine.handle(calls.Train(number + 1, STEPS, ahead=True)) for name, engine in engines.items()}
        assert set(following.values()) == {None}
        exchange(engines, "a", "b", seq=number + 1, round=number)
        for engine in engines.values():
            while engine.step() is None:
                pass
        every(engines, calls.Mix(number))
    return {name: x_of(engine).clone() for name, engine in engines.items()}


@pytest.mark.parametrize("mix", ["pet", "dsgd"])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_overlapped_rounds_of_a_script_end_near_those_of_a_task(tmp_path, kind, mix):
    """The script continues while vectors are exchanged and adds its steps one round later than a task does, so gradients differ by that."""
    agreed = agreement(kind, mix, lr={"sgd": 0.01, "adamw": 0.001}[kind], overlap=True)
    begun = x_of(opened(agreed))
    of_task = overlapped({name: opened(agreed, shard, node=name) for shard, name in enumerate("ab")})
    engines = {"a": Scripted(agreed, tmp_path), "b": opened(agreed, 1, node="b")}
    with running(replayed, agreed, tmp_path, optimizers(kind)):
        of_script = overlapped(engines)
        finish(engines["a"])
    apart = float((of_script["a"] - of_task["a"]).norm() / (of_task["a"] - begun).norm())
    assert apart < 0.15, apart


def test_a_script_that_overlaps_does_not_wait_for_the_mix(tmp_path):
    agreed, gate, went = agreement(mix="dsgd", overlap=True), threading.Event(), threading.Event()

    def script():
        made, model, batch = pieces(agreed, "a", 0)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        member = Member(tmp_path, Parts(model, unwrapped(optimizer)), Up())
        assert not member.grant.finished
        for number in range(2 * STEPS - 1):
            made.loss(model, batch(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
            member.step(None)
        went.set()
        assert gate.wait(60.0)
        member.close()

    engine = Scripted(agreed, tmp_path)
    with running(script):
        done(engine, calls.Train(0, STEPS))
        assert went.wait(60.0), "all but one of the next round's steps are done without a grant"
        gate.set()
    done(engine, calls.Stop())


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_in_clock_pace_a_script_and_a_task_reach_consensus(tmp_path, kind):
    """Effects come between any two local steps: the script adds them at its next call, and none is lost or added twice."""
    agreed = agreement(kind, "dsgd", pace="clock", rounds=0)
    engines = {"a": Scripted(agreed, tmp_path), "b": opened(agreed, 1, node="b")}
    stop = threading.Event()

    def frozen(model, _lr):
        return [torch.optim.SGD(model.parameters(), 0.0)]  # local steps that change no parameter

    def script():
        made, model, batch = pieces(agreed, "a", 0)
        (optimizer,) = frozen(model, 0.0)
        member = Member(tmp_path, Parts(model, unwrapped(optimizer)), Up())
        number = 0
        while not stop.is_set():
            made.loss(model, batch(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
            member.step(None)
            number += 1
        member.close()
        return flatten(model, layout(model))

    a, b = engines["a"], engines["b"]
    b.replica.x.add_(1.0)
    total = x_of(a) + x_of(b)
    with running(script) as outcome:
        done(a, calls.Free(True, 0))
        for number in range(8):
            for _ in range(5):
                a.step()
            exchange(engines, "a", "b", seq=number + 1, round=number)
        for _ in range(60):
            a.step()
        stop.set()
        a.hear(lambda: not a.has_script)
    assert torch.allclose(x_of(a) + x_of(b), total, atol=1e-3), "what one end gained the other lost"
    assert torch.allclose(x_of(a), x_of(b), atol=0.05)
    assert torch.allclose(outcome.value, x_of(a), atol=1e-3)
    done(a, calls.Stop())


@pytest.mark.parametrize("kind", ["between the halves of SAM", "after a step that raised"])
def test_peers_are_answered_from_the_model_after_the_last_step(tmp_path, kind):
    """Whatever the script does to its parameters meanwhile; the exchange's effect is added when it continues."""
    agreed = agreement("sgd", "dsgd", pace="clock", rounds=0)
    a, b = Scripted(agreed, tmp_path), opened(agreed, 1, node="b")
    meanwhile, answered, stop = threading.Event(), threading.Event(), threading.Event()

    def script():
        made, model, batch = pieces(agreed, "a", 0)
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.0)
        member = Member(tmp_path, Parts(model, unwrapped(optimizer)), Up())
        number = 0

        def step(between=lambda: None):
            made.loss(model, batch(number)).backward()
            optimizer.first_step(1.0)
            between()
            optimizer.second_step()
            optimizer.zero_grad()
            member.step(None)

        def reached():
            meanwhile.set()
            assert answered.wait(60.0)
            if kind == "after a step that raised":
                raise MemoryError

        step()
        try:
            step(reached)
        except MemoryError:
            with torch.no_grad():
                for each in model.parameters():
                    each.copy_(optimizer.state[each]["old_p"])
        while not stop.is_set():
            step()
        member.close()
        return flatten(model, layout(model))

    b.replica.x.add_(1.0)
    before = x_of(a), x_of(b)
    with running(script) as outcome:
        done(a, calls.Free(True, 0))
        a.hear(meanwhile.is_set)
        exchange({"a": a, "b": b}, "a", "b", seq=1)
        nearer = x_of(b) - before[1]
        assert nearer.mean() < -0.01
        assert torch.allclose(nearer, nearer.mean(), atol=1e-4), "b was one more than a everywhere"
        answered.set()
        for _ in range(20):
            a.step()
        stop.set()
        a.hear(lambda: not a.has_script)
    assert torch.allclose(outcome.value, before[0] - nearer, atol=1e-4)
    done(a, calls.Stop())


def test_a_node_without_its_script_does_no_local_steps_until_another_connects(tmp_path, monkeypatch):
    monkeypatch.setattr("starling.node.engine.script.driver.AWAY_S", 0.2)
    agreed = agreement(mix="dsgd")
    engine, model_of = Scripted(agreed, tmp_path), {}

    def script(steps):
        made, model, batch = pieces(agreed, "a", 0)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        member = Member(tmp_path, Parts(model, unwrapped(optimizer)), Up())
        model_of["begun"] = (member.grant, flatten(model, layout(model)))
        for number in range(steps):
            made.loss(model, batch(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number < steps - 1:
                member.step(None)
        member.client.hang_up()  # killed in the middle of a round
        return model

    with running(script, STEPS + 2):
        assert done(engine, calls.Train(0, STEPS)).figures.local_steps == STEPS
        done(engine, calls.Mix(0))
        began = time.monotonic()
        assert done(engine, calls.Train(1, STEPS)).figures.local_steps == STEPS, "none of the second round"
        assert time.monotonic() - began > 0.2
    done(engine, calls.Mix(1))
    before = x_of(engine).clone()
    trained = done(engine, calls.Train(2, STEPS))
    assert trained.figures.local_steps == STEPS
    assert any("script is not here" in note for note in trained.notes)
    done(engine, calls.Mix(2))
    with running(script, STEPS + 1):
        engine.hear(lambda: engine.has_script)
        assert done(engine, calls.Train(3, STEPS)).figures.local_steps == 2 * STEPS
        moved = x_of(engine).clone()
        finish(engine)
    assert torch.equal(model_of["begun"][1], before), "it begins where the first one was heard last"
    assert not torch.equal(moved, before)


def member_of(folder, model, optimizer=None, **parts):
    optimizer = torch.optim.SGD(model.parameters(), 0.01) if optimizer is None else optimizer
    return Member(folder, Parts(model, unwrapped(optimizer), **parts), Up())


def attempt(engine, make):
    """Return the message that a script gets which tries to join."""

    def script():
        with pytest.raises(ConfigError) as raised:
            make()
        return str(raised.value)

    with running(script) as outcome:
        engine.hear(lambda: outcome.over)
    return outcome.value


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear(64, 10), "the model has no trainable parameter"),
        (lambda: _digits(width=7), "has shape (7, 64), the swarm's has"),
        (lambda: _digits(extra=True), "the model trains extra.weight, the swarm's does not"),
    ],
)
def test_a_script_with_another_model_is_refused_and_the_next_one_accepted(tmp_path, model, words):
    agreed = agreement()
    engine = Scripted(agreed, tmp_path)
    message = attempt(engine, lambda: member_of(tmp_path, model()))
    assert words in message
    assert "\n" not in message
    with running(replayed, agreed, tmp_path, optimizers("sgd")):
        done(engine, calls.Train(0, STEPS))
        done(engine, calls.Mix(0))
        finish(engine)


def _digits(width=None, *, extra=False):
    _, model, _ = pieces(agreement(), "a", 0)
    if width is not None:
        first = next(each for each in model.modules() if isinstance(each, nn.Linear))
        first.weight = nn.Parameter(torch.zeros(width, 64))
    if extra:
        model.extra = nn.Linear(2, 2)
    return model


def test_a_second_script_in_one_directory_is_refused(tmp_path):
    agreed = agreement()
    engine = Scripted(agreed, tmp_path)
    gate = threading.Event()

    def first():
        member = member_of(tmp_path, _digits())
        assert gate.wait(60.0)
        member.close()

    with running(first):
        engine.hear(lambda: engine.has_script and engine.engine.driver.contact.vectors is not None)
        assert f"{tmp_path} is in use by process {os.getpid()}; end that script" in attempt(engine, lambda: member_of(tmp_path, _digits()))
        gate.set()
    done(engine, calls.Stop())


def stepping(folder, spoil=lambda model, number: None, steps=STEPS, **parts):
    """Run a script that does `steps` local steps, one of which may be spoilt; return its final parameters."""
    made, model, batch = pieces(agreement(), "a", 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    member = Member(folder, Parts(model, unwrapped(optimizer), **parts), Up())
    assert not member.grant.finished
    try:
        for number in range(steps):
            made.loss(model, batch(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
            spoil(model, number)
            member.step(0.5)
    except ConfigError:
        member.close()
        raise
    return member


def test_a_model_that_is_no_longer_finite_is_not_sent(tmp_path, monkeypatch):
    monkeypatch.setattr("starling.node.engine.script.driver.AWAY_S", 0.1)
    engine = Scripted(agreement(), tmp_path)
    before = x_of(engine).clone()

    def spoil(model, number):
        if number == STEPS - 1:
            next(model.parameters()).data[0] = math.nan

    def script():
        with pytest.raises(ConfigError, match=r"no longer finite since a step of round 0: it is not sent to peers") as raised:
            stepping(tmp_path, spoil)
        return str(raised.value)

    with running(script) as outcome:
        assert done(engine, calls.Train(0, STEPS)).figures.local_steps == 0
    assert str(tmp_path) in outcome.value
    assert torch.equal(x_of(engine), before)
    done(engine, calls.Stop())


def test_after_ctrl_c_in_the_wait_at_a_round_s_end_the_next_step_ends_the_round(tmp_path):
    """The mix replaces what was done since; the next round has all its steps."""
    engine = Scripted(agreement(), tmp_path)

    def script():
        made, model, batch = pieces(agreement(), "a", 0)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        member = Member(tmp_path, Parts(model, unwrapped(optimizer)), Up())
        received, ends = member.client.receive, []

        def interrupted():
            member.client.receive = received
            raise KeyboardInterrupt

        assert not member.grant.finished
        member.client.receive = interrupted
        for number in range(2 * STEPS + 1):
            made.loss(model, batch(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
            try:
                ends.append(member.step(0.5))
            except KeyboardInterrupt:
                ends.append(None)
        mixed = flatten(model, layout(model))
        member.close()
        return ends, mixed

    with running(script) as outcome:
        for number in range(2):
            assert done(engine, calls.Train(number, STEPS)).figures.local_steps == (number + 1) * STEPS
            engine.replica.x.mul_(0.5)
            done(engine, calls.Mix(number))
        mixed = x_of(engine)
        engine.handle(calls.Train(2, STEPS))
        engine.hear(lambda: not engine.has_script)
    assert outcome.value[0] == [*[False] * (STEPS - 1), None, True, *[False] * (STEPS - 1), True]
    assert torch.equal(outcome.value[1], mixed)
    done(engine, calls.Stop())


def test_a_step_after_the_swarm_s_end_is_refused(tmp_path):
    engine = Scripted(agreement(), tmp_path)

    def script():
        member = stepping(tmp_path)
        assert member.grant.finished
        with pytest.raises(ConfigError, match=r"has finished: leave the loop"):
            member.step(None)
        member.close()

    with running(script):
        done(engine, calls.Train(0, STEPS))
        done(engine, calls.Mix(0))
        finish(engine)


def test_the_script_evaluates_on_request_and_the_best_model_is_stored(tmp_path):
    engine, seen = Scripted(agreement(), tmp_path), []

    def evaluate():
        assert not torch.is_grad_enabled()
        seen.append(len(seen))
        return {"accuracy": 0.5 + len(seen) / 10, "loss": 1.25, "f1": 0.25}

    def script():
        member = stepping(tmp_path, evaluate=evaluate)
        member.close()

    with running(script):
        done(engine, calls.Train(0, STEPS))
        done(engine, calls.Mix(0))
        found = done(engine, calls.Evaluate(1))
        assert (found.value, found.loss, found.others, found.best) == (0.6, 1.25, {"f1": 0.25}, 0.6)
        finish(engine)
    assert (tmp_path / "best.safetensors").exists()


def test_without_evaluate_the_logged_metric_counts_and_its_absence_gives_one_line(tmp_path):
    engine = Scripted(agreement(), tmp_path)

    def script():
        made, model, batch = pieces(agreement(), "a", 0)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        member = member_of(tmp_path, model, optimizer)
        while not member.grant.finished:
            made.loss(model, batch(0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if member.grant.round:
                member.measuring.log({"accuracy": 0.75})
            member.step(None)
        member.close()

    with running(script):
        done(engine, calls.Train(0, STEPS))
        done(engine, calls.Mix(0))
        reply = engine.handle(calls.Evaluate(1))
        while reply is None:
            reply = engine.step()
        assert isinstance(reply, calls.Refused)
        assert "swarm.log" in reply.reason
        done(engine, calls.Train(1, STEPS))
        done(engine, calls.Mix(1))
        assert done(engine, calls.Evaluate(2)).value == 0.75
        finish(engine)


def in_a_fork(do):
    """Return what a forked process reports; it must not end as the tests do."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(write, str(do()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        text = said.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_cannot_step_and_its_end_does_not_close_the_swarm(tmp_path):
    """As in a worker that a data loader has forked."""
    engine = Scripted(agreement(), tmp_path)

    said, gate = [], threading.Event()

    def script():
        member = stepping(tmp_path, steps=1)

        def forked():
            try:
                member.step(None)
            except ConfigError as error:
                return error
            finally:
                member.close()

        said.append(in_a_fork(forked))
        assert gate.wait(60.0)
        member.close()

    with running(script):
        engine.handle(calls.Train(0, STEPS))
        engine.hear(lambda: said)
        assert not engine.busy
        assert engine.has_script
        gate.set()
        engine.hear(lambda: not engine.has_script)
    assert said[0].startswith("this process is a fork of the one that joined")
    done(engine, calls.Stop())


def test_rounds_without_a_script_take_as_long_as_with_one(tmp_path, monkeypatch):
    """Otherwise a lone node would finish its run in seconds."""
    monkeypatch.setattr("starling.node.engine.script.driver.FIRST_S", 0.1)
    monkeypatch.setattr("starling.node.engine.script.driver.LEAST_S", 0.3)
    began = time.monotonic()  # the first deadline is counted from the creation of the engine
    engine = Scripted(agreement(mix="dsgd"), tmp_path)
    for number in range(3):
        assert done(engine, calls.Train(number, STEPS)).figures.local_steps == 0
        done(engine, calls.Mix(number))
    assert time.monotonic() - began >= 0.1 + 2 * 0.3
    done(engine, calls.Stop())


def test_closing_in_the_middle_of_a_round_hands_over_its_steps_and_stores_the_state(tmp_path):
    """So model and optimiser match when it comes back."""
    agreed = agreement("adamw", "dsgd")
    engine = Scripted(agreed, tmp_path)

    def script():
        made, model, batch = pieces(agreed, "a", 0)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        member = Member(tmp_path, Parts(model, unwrapped(optimizer), state={"optimizer": optimizer}), Up())
        assert not member.grant.finished
        for number in range(STEPS - 1):
            made.loss(model, batch(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
            member.step(None)
        member.close()
        return flatten(model, layout(model))

    with running(script) as outcome:
        assert done(engine, calls.Train(0, STEPS)).figures.local_steps == STEPS - 1
    assert torch.equal(x_of(engine), outcome.value)
    kept = torch.load(tmp_path / "script-0.state", weights_only=True)["optimizer"]["state"]
    assert {int(each["step"]) for each in kept.values()} == {STEPS - 1}
    done(engine, calls.Stop())


def test_a_user_s_own_checkpoint_overrides_the_node_s_state(tmp_path):
    agreed = agreement(mix="dsgd")
    engine = Scripted(agreed, tmp_path)

    def script():
        _, model, _ = pieces(agreed, "a", 0)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        torch.save({"optimizer": {"no": "state of this one"}}, tmp_path / "script-0.state")
        member = Member(tmp_path, Parts(model, unwrapped(optimizer), state={"optimizer": optimizer}), Up())
        with pytest.raises(ConfigError, match="needs round and steps"):
            member.load_state_dict({"round": 0})
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        own = flatten(model, layout(model))
        member.load_state_dict({"round": 0, "steps": 2})
        assert member.state_dict() == {"round": 0, "steps": 2}
        assert torch.equal(flatten(model, layout(model)), own)
        member.client.hang_up()

    with running(script):
        engine.handle(calls.Train(0, STEPS))
        engine.hear(lambda: engine.has_script)
        engine.hear(lambda: not engine.has_script)
    done(engine, calls.Stop())


def test_an_unnamed_number_is_the_swarm_s_metric(tmp_path):
    engine = Scripted(agreement(), tmp_path)

    def script():
        stepping(tmp_path, evaluate=lambda: 0.25).close()

    with running(script):
        done(engine, calls.Train(0, STEPS))
        done(engine, calls.Mix(0))
        found = done(engine, calls.Evaluate(1))
        assert (found.value, found.loss) == (0.25, None), "accuracy of digits says nothing of the loss"
        finish(engine)


def test_state_is_stored_beside_the_checkpoint_and_restored(tmp_path):
    agreed = agreement("adamw", "dsgd")
    engine = Scripted(agreed, tmp_path)

    def script(steps):
        made, model, batch = pieces(agreed, "a", 0)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        member = Member(tmp_path, Parts(model, unwrapped(optimizer), state={"optimizer": optimizer}), Up())
        begun = (member.grant.round, {name: each["exp_avg"].clone() for name, each in enumerate(optimizer.state.values())})
        for number in range(steps):
            made.loss(model, batch(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if not member.grant.finished:
                member.step(None)
        left = {name: each["exp_avg"].clone() for name, each in enumerate(optimizer.state.values())}
        member.close()
        return begun, left

    with running(script, STEPS) as first:
        done(engine, calls.Train(0, STEPS))
        done(engine, calls.Mix(0))
        done(engine, calls.Save())
        assert engine.handle(calls.Train(1, STEPS)) is None
        engine.hear(lambda: not engine.has_script)
    done(engine, calls.Stop())
    again = Scripted(agreed, tmp_path)
    assert again.opened.resumed
    with running(script, 0) as second:
        again.handle(calls.Train(1, STEPS))
        again.hear(lambda: again.has_script)
        again.hear(lambda: not again.has_script)
    done(again, calls.Stop())
    assert second.value[0][0] == 1
    kept, before = second.value[0][1], first.value[1]
    assert kept.keys() == before.keys() != set()
    assert all(torch.equal(kept[name], before[name]) for name in kept)
    assert AWAY_S > 0
