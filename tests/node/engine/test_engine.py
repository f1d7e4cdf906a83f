"""The engine as the daemon sees it: calls, paces, refusals. Exchanges have a file of their own."""

import math

import msgspec
import pytest
import safetensors.torch
import torch

from starling.node.config.schema import OptimizerSection
from starling.node.engine.schedules import schedule
from starling.node.engine.snapshot import KEPT_S
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, every, exchange, manifest, open_request, opened, refused_as, state_of, x_of

EVERY_CALL = (
    calls.Train(0, 1),
    calls.Free(on=True, round=0),
    calls.Offer("b", 0, 1, 0, 0.5, 0),
    calls.Answer("b", 0, 1, 0, 0.5, 0.0, b""),
    calls.Apply("b", 0, 1, b""),
    calls.Commit("b", 0, 1),
    calls.Drop("b", 0, 1),
    calls.Mix(0),
    calls.Settle("b"),
    calls.Revoke("b"),
    calls.Evaluate(),
    calls.Save(),
    calls.Snapshot(),
    calls.ReadChunk(1, 0, 10),
    calls.Consider("b", 0, b""),
    calls.Agree(),
    calls.Limit(1),
    calls.Stop(),
)


@pytest.mark.parametrize("call", EVERY_CALL, ids=lambda call: type(call).__name__)
def test_before_open_every_call_is_refused(call):
    engine = Worker()
    assert engine.handle(call) == calls.Refused("state", "the engine is not open")
    assert not engine.busy


def test_open_describes_the_task_and_works_once():
    engine = Worker()
    reply = engine.handle(open_request(manifest()))
    assert isinstance(reply, calls.Opened)
    assert (reply.parameters, reply.metric, reply.higher_is_better, reply.device) == (4810, "accuracy", True, "cpu")
    assert (reply.resumed, reply.round, reply.figures.local_steps) == (False, 0, 0)
    assert reply.samples > 0
    again = engine.handle(open_request(manifest()))
    refused_as("state", again)


@pytest.mark.parametrize(
    ("agreed", "word"),
    [
        (manifest(kind="starling.node.tasks.digits:Digits", params={"model": "tree"}), "task: model must be one of"),
        (manifest(optimizer=OptimizerSection(kind="torch.optim:RMSprop", alpha=-1.0)), "optimizer"),
    ],
)
def test_user_errors_are_refused_in_one_line_with_the_key(agreed, word):
    reply = Worker().handle(open_request(agreed))
    refused_as("config", reply, word)


def test_equal_labels_draw_equal_batches_and_different_labels_do_not():
    one, same, other = (opened(manifest(), 0, node) for node in ("a", "a", "b"))
    losses = [done(engine, calls.Train(0, 5)).figures.loss for engine in (one, same, other)]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(x_of(one), x_of(same))


def test_training_is_sliced_so_that_a_call_waits_for_one_local_step():
    engine = opened(manifest())
    assert engine.handle(calls.Train(3, 5)) is None
    for _ in range(4):
        assert engine.busy
        assert engine.step() is None
        assert isinstance(engine.handle(calls.Snapshot()), calls.SnapshotInfo)
    trained = engine.step()
    assert isinstance(trained, calls.Trained)
    assert (trained.round, trained.figures.local_steps, trained.undone) == (3, 5, 0)
    assert not engine.busy


def test_calls_out_of_order_are_refused():
    """One round at a time, and each pace refuses the other's calls."""
    engine = opened(manifest())
    engine.handle(calls.Train(0, 5))
    for call in (calls.Train(1, 5), calls.Mix(0), calls.Offer("b", 0, 1, 0, 0.5, 0), calls.Agree(), calls.Free(on=True, round=0)):
        assert engine.handle(call).kind == "state"
    while (reply := engine.step()) is None:
        pass
    assert isinstance(reply, calls.Trained)
    assert opened(manifest(pace="clock")).handle(calls.Train(0, 5)).kind == "state"


def test_free_training_runs_until_it_is_stopped():
    engine = opened(manifest(pace="clock"))
    assert done(engine, calls.Free(on=True, round=0)).figures.loss is None
    for _ in range(7):
        assert engine.step() is None
    first = done(engine, calls.Free(on=True, round=1))
    assert (first.round, first.figures.local_steps) == (1, 7)
    assert math.isfinite(first.figures.loss)
    assert engine.busy
    done(engine, calls.Free(on=False, round=2))
    assert not engine.busy


def test_an_evaluation_shares_time_with_training_and_uses_the_model_at_its_start():
    engine, twin = opened(manifest(pace="clock")), opened(manifest(pace="clock"))
    engine.handle(calls.Free(on=True, round=0))
    assert engine.handle(calls.Evaluate()) is None
    assert engine.handle(calls.Evaluate()).kind == "state"
    begun = done(engine, calls.Free(on=True, round=0)).figures.local_steps
    while (reply := engine.step()) is None:
        pass
    assert reply == done(twin, calls.Evaluate())
    assert done(engine, calls.Free(on=False, round=0)).figures.local_steps > begun
    assert reply.samples > 0


@pytest.mark.parametrize(("kind", "lr"), [("sgd", 1e30), ("adamw", 1e36)])
def test_a_step_that_is_not_finite_is_undone_and_counted(kind, lr):
    """A NaN that leaves a node would spoil its neighbors; a diverged node must stay silent and visible."""
    optimizer = msgspec.structs.replace(OptimizerSection(kind=kind), lr=lr)  # more than a manifest allows
    engine = opened(manifest("quadratic", params={"dtype": "float32"}, optimizer=optimizer))
    trained = [done(engine, calls.Train(turn, 20)) for turn in range(3)]
    assert sum(reply.undone for reply in trained) > 0
    assert [reply.figures.local_steps for reply in trained] == [20, 40, 60]
    assert bool(torch.isfinite(x_of(engine)).all())


def test_after_settling_and_revoking_edges_the_correction_is_the_sum_of_remaining_flows():
    engines = {peer: opened(manifest(), shard, peer) for shard, peer in enumerate("abcd")}
    every(engines, calls.Train(0, 5))
    a, trained = engines["a"], x_of(engines["a"])
    exchange(engines, "a", "d", seq=1)
    done(a, calls.Revoke("d"))
    for peer in "bc":
        exchange(engines, "a", peer, seq=1)
    done(a, calls.Mix(0))
    flows = state_of(a).flows
    assert flows.keys() == {"b", "c"}
    assert not torch.equal(x_of(a), trained)
    done(a, calls.Settle("b"))
    assert list(state_of(a).settled) == ["b"]
    assert torch.equal(state_of(a).total, flows["b"] + flows["c"])
    done(a, calls.Revoke("b"))
    assert torch.equal(state_of(a).total, flows["c"])


def snapshot(engine):
    held = done(engine, calls.Snapshot())
    return held, b"".join(done(engine, calls.ReadChunk(held.snapshot, at, 1000)).data for at in range(0, held.size, 1000))


def test_a_late_joiner_starts_from_a_snapshot_with_zero_flows_and_a_rising_rate():
    giver, joiner, twin = (opened(manifest(ramp_rounds=10), 0, node) for node in ("a", "b", "b"))
    done(giver, calls.Train(0, 20))
    done(giver, calls.Mix(0))
    held, state = snapshot(giver)
    assert (len(state), held.round) == (held.size, 1)
    for engine in (joiner, twin):
        done(engine, calls.Train(0, 5))
        done(engine, calls.Consider("a", 7, state))
        assert done(engine, calls.Agree()).round == 7
        assert torch.equal(x_of(engine), x_of(giver))
        assert not state_of(engine).total.any()
    before = x_of(joiner)
    done(joiner, calls.Train(7, 1))
    done(twin, calls.Train(16, 1))
    early, late = (float((x_of(engine) - before).norm()) for engine in (joiner, twin))
    agreed = manifest(ramp_rounds=10)
    rates = [schedule(agreed.optimizer, agreed.pace.rounds).at(turn) for turn in (7, 16)]
    assert early / late == pytest.approx(0.1 * rates[0] / rates[1], rel=1e-4)


def test_equal_models_give_equal_snapshots_and_old_ones_are_deleted():
    """A joiner downloads parts of one snapshot from several peers, identified by its digest."""
    one, other = (opened(manifest(), 0, "a") for _ in range(2))
    assert snapshot(one) == snapshot(other)
    first = done(one, calls.Snapshot())
    assert done(one, calls.Snapshot()) == first
    assert done(one, calls.ReadChunk(first.snapshot, 0, 10)).data
    done(one, calls.Train(0, 1))
    done(one, calls.Snapshot())
    assert done(one, calls.ReadChunk(first.snapshot, 0, 10)).data == b""


def test_an_unread_snapshot_is_deleted_at_a_save():
    """A snapshot is as large as the model; it is retained while somebody still reads it, however slowly."""
    now = [0.0]
    engine = Worker(clock=lambda: now[0])
    done(engine, open_request(manifest()))
    held = done(engine, calls.Snapshot())

    def read():
        return done(engine, calls.ReadChunk(held.snapshot, 0, 10)).data

    for _ in range(3):
        now[0] += 0.9 * KEPT_S
        done(engine, calls.Save())
        assert read()
    now[0] += 1.1 * KEPT_S
    done(engine, calls.Save())
    assert not read()


def test_a_foreign_state_is_refused_without_a_change():
    engine = opened(manifest())
    _, good = snapshot(engine)
    _, foreign = snapshot(opened(manifest("quadratic")))
    before = x_of(engine)
    damaged = bytearray(good)
    damaged[-5] ^= 1
    blank = safetensors.torch.save({"x": before})
    for state, reason in (
        (bytes(damaged), "state_damaged"),
        (good[:-1], "state_damaged"),
        (b"", "state_damaged"),
        (blank, "state_damaged"),
        (foreign, "state_of_another_model"),
    ):
        assert engine.handle(calls.Consider("b", 3, state)) == calls.Refused("peer", reason)
        assert torch.equal(x_of(engine), before)
    engine.replica.x[0] = math.inf
    _, infinite = snapshot(engine)
    assert opened(manifest()).handle(calls.Consider("b", 3, infinite)) == calls.Refused("peer", "state_unusable")


def test_losses_leave_our_model_and_the_others_as_they_are_whatever_a_task_raises(monkeypatch):
    engine = opened(manifest())
    model = engine.trainer.model
    ours, others = model.x.clone(), torch.stack([model.x + 1.0, model.x - 1.0])
    before, losses = others.clone(), model.losses(model.batch(0), others)
    assert losses.tolist() == model.losses(model.batch(0), others).tolist()
    assert losses[0] != losses[1]
    assert float(model.losses(model.batch(0), model.x[None])) == model.task.loss(model.module, model.batch(0)).item()
    monkeypatch.setattr(type(model.task), "loss", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.losses(model.batch(0), others)
    assert torch.equal(model.x, ours)
    assert torch.equal(others, before)
