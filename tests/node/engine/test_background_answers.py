"""Calls answered while a gradient is computed, by a driver in this thread and by the second thread of the engine's process."""

import socket
import threading
from contextlib import contextmanager

import pytest
import torch

from starling.node.config.large import LARGE
from starling.node.config.schema import CompressSection, OptimizerSection
from starling.node.engine.background_answers import BackgroundAnswers
from starling.node.engine.local import local_model
from starling.node.engine.process import serve
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.rpc.pipe import Failed, Pipe
from tests.harness.engines import done, every, manifest, open_request, opened, state_of, x_of

WHOLE = CompressSection(select="full", request="identity", response="identity")
LONG_S = 30.0
WAITS_S = 0.2


def agreement(mix, pace):
    overlap = {"overlap": True} if pace == "steps" else {}
    return manifest(
        "quadratic",
        3,
        mix=mix,
        pace=pace,
        compress=WHOLE,
        optimizer=OptimizerSection(lr=0.02, schedule="constant"),
        local_steps=2,
        rounds=20,
        **overlap,
    )


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Make the model count as large, since calls are answered during gradients of large models only."""
    monkeypatch.setattr(local_model, "LARGE", 10)


def step_with(engine, *wanted):
    """Do a local step during whose gradient these calls arrive; return their replies, None for calls that must wait."""
    replies = []

    @contextmanager
    def driver():
        replies.extend(engine.handle_in_background(call) for call in wanted)
        yield

    engine.opened.window.around = driver
    engine.step()
    return replies


def begin(engines, pace):
    """Send Train, with a frozen vector in steps pace, so that a local step is due."""
    if pace == "clock":
        every(engines, calls.Free(on=True, round=0))
        for engine in engines.values():
            engine.step()
        return
    every(engines, calls.Train(0, 2))
    for engine in engines.values():
        assert engine.handle(calls.Train(1, 2, ahead=True)) is None


@pytest.mark.parametrize("pace", ["steps", "clock"])
@pytest.mark.parametrize("mix", ["dsgd", "pet"])
def test_exchanges_during_gradients_equal_those_between_local_steps_bit_for_bit(mix, pace):
    agreed = agreement(mix, pace)
    beside, between = ({name: opened(agreed, shard, node=name) for shard, name in enumerate("ab")} for _ in range(2))
    for engines in (beside, between):
        begin(engines, pace)

    (offered,) = step_with(beside["a"], calls.Offer("b", 0, 1, 0, 0.4, 0))
    assert offered == done(between["a"], calls.Offer("b", 0, 1, 0, 0.4, 0))
    between["a"].step()

    asked = calls.Answer("a", 0, 1, 0, 0.4, offered.gain, offered.payload)
    (answered,) = step_with(beside["b"], asked)
    assert answered == done(between["b"], asked)
    between["b"].step()

    for name, call in (("a", calls.Apply("b", 0, 1, answered.payload)), ("b", calls.Commit("a", 0, 1))):
        if pace == "clock":  # the model moves at the end of the step
            between[name].step()
        (reply,) = step_with(beside[name], call)
        assert reply == done(between[name], call)
        if pace == "steps":
            between[name].step()
    if pace == "steps":
        for engines in (beside, between):
            every(engines, calls.Mix(0))
    for name in "ab":
        assert torch.equal(x_of(beside[name]), x_of(between[name]))
        assert state_of(beside[name]).flows.keys() == state_of(between[name]).flows.keys()
    if mix == "pet":
        assert torch.equal(state_of(beside["a"]).flows["b"], -state_of(beside["b"]).flows["a"])
        assert torch.equal(state_of(beside["a"]).flows["b"], state_of(between["a"]).flows["b"])


def test_in_clock_pace_calls_after_a_commit_wait_for_the_model_to_have_it():
    agreed = agreement("pet", "clock")
    engines = {name: opened(agreed, shard, node=name) for shard, name in enumerate("abc")}
    begin(engines, "clock")
    offered = done(engines["a"], calls.Offer("b", 0, 1, 0, 0.4, 0))
    answered = done(engines["b"], calls.Answer("a", 0, 1, 0, 0.4, offered.gain, offered.payload))
    apply, other = calls.Apply("b", 0, 1, answered.payload), calls.Offer("c", 0, 1, 0, 0.4, 0)
    applied, waits = step_with(engines["a"], apply, other)
    assert isinstance(applied, calls.Done)
    assert waits is None
    assert step_with(engines["a"], other) != [None]


@pytest.mark.parametrize(
    "call",
    [calls.Snapshot(), calls.Evaluate(), calls.Save(), calls.Settle("b"), calls.Revoke("b"), calls.Free(on=False, round=0)],
    ids=lambda call: type(call).__name__,
)
def test_calls_that_change_or_copy_the_model_wait(call):
    engines = {"a": opened(agreement("pet", "clock"))}
    begin(engines, "clock")
    assert step_with(engines["a"], call) == [None]


def test_calls_are_answered_during_a_step_only_while_its_gradient_is_computed():
    engines = {"a": opened(agreement("pet", "clock"))}
    begin(engines, "clock")
    assert engines["a"].handle_in_background(calls.Offer("b", 0, 1, 0, 0.4, 0)) is None


def test_parameters_of_a_look_ahead_are_not_sent():
    """The second gradient of a step is taken at other parameters than the model's."""
    agreed = manifest("quadratic", 2, pace="clock", optimizer=OptimizerSection(lr=0.02, gradient="extragradient"))
    engine = opened(agreed)
    done(engine, calls.Free(on=True, round=0))
    answered = []

    class Seen:
        def __init__(self, data):
            self._data = data

        def batch(self, size, chance):
            answered.append(engine.handle_in_background(calls.Drop("b", 0, 1)))
            return self._data.batch(size, chance)

    engine.trainer.model.data = Seen(engine.trainer.model.data)
    engine.step()
    assert answered == [calls.Done(), None]


class Gated:
    """Data whose batches are released by the test."""

    def __init__(self, data):
        self._data, self.asked, self.let = data, threading.Semaphore(0), threading.Semaphore(0)

    def __getattr__(self, name):
        return getattr(self._data, name)

    def batch(self, size, chance):
        self.asked.release()
        assert self.let.acquire(timeout=LONG_S)
        return self._data.batch(size, chance)


class Served:
    """An engine behind a pipe, whose gradients wait for the test."""

    def __init__(self, engine, agreed):
        self.engine, self.ended = engine, []
        ours, theirs = socket.socketpair()
        self.sock, self.pipe = ours, Pipe(ours)
        ours.settimeout(LONG_S)
        self._count = 0
        self.thread = threading.Thread(target=self._run, args=(theirs,))
        self.thread.start()
        assert isinstance(self.call(open_request(agreed)), calls.Opened)
        self.gate = engine.trainer.model.data = Gated(engine.trainer.model.data)

    def _run(self, sock):
        with sock:
            try:
                serve(self.engine, Pipe(sock))
            except Exception as error:  # noqa: BLE001 — looked at by the test
                self.ended.append(error)

    def send(self, call):
        self._count += 1
        self.pipe.send(self._count, call)
        return self._count

    def call(self, call):
        number = self.send(call)
        at, reply = self.pipe.reply()
        assert at == number
        return reply

    @property
    def silent(self):
        """Assert that no reply has come and none comes."""
        self.sock.settimeout(WAITS_S)
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(LONG_S)

    def computing(self):
        assert self.gate.asked.acquire(timeout=LONG_S)


@contextmanager
def served(pace="clock", dim=LARGE + 1):
    agreed = manifest("diagonal", mix="dsgd", pace=pace, params={"dim": dim, "nodes": 4})
    it = Served(Worker(clock=lambda: 0.0), agreed)
    try:
        yield it
    finally:
        it.gate.let.release(1000)
        it.sock.close()
        it.thread.join(LONG_S)
        assert not it.thread.is_alive()


def test_a_second_thread_answers_exchanges_during_gradients_and_other_calls_stay_in_order():
    with served() as it:
        it.call(calls.Free(on=True, round=0))
        it.computing()
        first = it.call(calls.Offer("b", 0, 1, 0, 0.5, 0))
        assert isinstance(first, calls.Offered)
        held, second = it.send(calls.Snapshot()), it.send(calls.Offer("c", 0, 1, 0, 0.5, 0))
        assert it.silent
        it.gate.let.release()
        at, reply = it.pipe.reply()
        assert (at, type(reply)) == (held, calls.SnapshotInfo)
        at, reply = it.pipe.reply()
        assert (at, type(reply)) == (second, calls.Offered)
        assert reply != first, "a step was done between them"


def test_a_call_that_must_wait_waits_for_at_most_one_step():
    with served() as it:
        it.call(calls.Free(on=True, round=0))
        it.computing()
        held = it.send(calls.Snapshot())
        assert it.silent
        it.gate.let.release()
        at, reply = it.pipe.reply()
        assert (at, type(reply)) == (held, calls.SnapshotInfo)


def test_steps_go_on_beside_a_second_thread_that_waits():
    with served() as it:
        it.call(calls.Free(on=True, round=0))
        for _ in range(5):
            it.computing()
            it.gate.let.release()
        it.computing()
        assert isinstance(it.call(calls.Offer("b", 0, 1, 0, 0.5, 0)), calls.Offered)
        assert it.ended == []


def test_the_second_thread_does_not_wait_in_a_gradient_for_a_call_that_the_first_has_read():
    """The second thread saw the call arrive, but the first one read it between two gradients."""
    looked = threading.Semaphore(0)

    class Stale:
        def wait(self):
            looked.release()

        def ready(self):
            return False

        def receive(self):
            raise AssertionError("nothing is there")

    beside = BackgroundAnswers(None, Stale())
    for _ in range(3):
        with beside.around_gradient():
            for _ in range(3):
                assert looked.acquire(timeout=LONG_S)
    assert not beside.ready()


def test_every_call_is_answered_in_order_while_steps_go_on():
    with served() as it:
        it.call(calls.Free(on=True, round=0))
        it.gate.let.release(1_000_000)
        for turn in range(60):
            sent = [
                it.send(call)
                for call in (
                    calls.Offer("b", 0, turn, 0, 0.5, 0),
                    calls.Drop("b", 0, turn),
                    *([calls.Snapshot()] if turn % 7 == 0 else []),
                    calls.Drop("c", 0, turn),
                )
            ]
            assert [it.pipe.reply()[0] for _ in sent] == sent
        assert it.ended == []


def test_a_small_model_has_no_second_thread(monkeypatch):
    monkeypatch.setattr(local_model, "LARGE", 64)
    with served(dim=64) as it:
        it.call(calls.Free(on=True, round=0))
        it.computing()
        number = it.send(calls.Offer("b", 0, 1, 0, 0.5, 0))
        assert it.silent
        it.gate.let.release()
        assert it.pipe.reply()[0] == number


def test_an_error_in_the_second_thread_ends_the_engine(monkeypatch):
    with served() as it:
        it.call(calls.Free(on=True, round=0))
        it.computing()

        def breaks(*_, **__):
            raise ZeroDivisionError("a bug")

        monkeypatch.setitem(it.engine.session.answers, calls.Offer, breaks)
        it.send(calls.Offer("b", 0, 1, 0, 0.5, 0))
        assert it.silent
        it.gate.let.release()
        at, reply = it.pipe.reply()
        assert at == 0
        assert isinstance(reply, Failed)
        assert "a bug" in reply.message
        it.thread.join(LONG_S)
        assert isinstance(it.ended[0], ZeroDivisionError)


def test_an_engine_whose_daemon_has_gone_ends_after_its_gradient():
    with served() as it:
        it.call(calls.Free(on=True, round=0))
        it.computing()
        it.sock.shutdown(socket.SHUT_RDWR)
        it.gate.let.release()
        it.thread.join(LONG_S)
        assert isinstance(it.ended[0], EOFError | BrokenPipeError | ConnectionResetError)
