"""The number of threads of an engine, which changes no byte of a payload."""

import itertools

import pytest
import torch
from msgspec import structs

from starling.gossip.compress import codec as payloads_of
from starling.gossip.rng import generator
from starling.kernels import codec
from starling.kernels.schema import CODECS
from starling.node.config.schema import MixSection
from starling.node.engine.threads import REST_S, RESTS, STEPS, Threads, one_thread
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, exchange, manifest, open_request, opened


@pytest.fixture(autouse=True)
def restored():
    """Restore the process's number of threads for other tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CODECS)
def test_payloads_are_equal_on_any_number_of_threads(name):
    """Signatures and digests cover these bytes. The vector is long enough for torch to use its threads."""
    x, payloads, read = torch.randn(100_003, generator=generator(5)), set(), set()
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        coder = codec.coder(name, x.numel(), "cpu")
        payloads.add(coder.encode(x, 1))
        read.add(coder.decode(min(payloads))[1].numpy().tobytes())
    assert len(payloads) == len(read) == 1


def test_single_threading_ends_with_its_block_also_after_an_error():
    torch.set_num_threads(3)
    with pytest.raises(ZeroDivisionError), one_thread():
        torch.set_num_threads(1 // (torch.get_num_threads() - 1))
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("kind", ["dsgd", "gather"])
def test_payloads_are_coded_on_one_thread(kind, monkeypatch):
    """Beside a busy process two threads are forty times slower; local steps keep theirs."""
    agreed, seen = manifest(mix=MixSection(kind=kind)), []

    def seeing(call):
        def sees(*given, **more):
            seen.append(torch.get_num_threads())
            return call(*given, **more)

        return sees

    engines = {name: opened(agreed, shard, name) for shard, name in enumerate("ab")}
    for engine in engines.values():
        done(engine, calls.Train(0, 0))
        vectors = engine.session.rounds.vectors
        for each in ("vector", "take"):
            monkeypatch.setattr(vectors, each, seeing(getattr(vectors, each)))
    monkeypatch.setattr(payloads_of, "decode", seeing(payloads_of.decode))
    torch.set_num_threads(2)
    if kind == "gather":
        published = done(engines["a"], calls.Publish(0))
        done(engines["b"], calls.VerifyUpdate("a", published.digest, published.payload))
    else:
        exchange(engines, "a", "b", seq=1, round=0)
    assert len(seen) >= (2 if kind == "gather" else 4)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


class Machine:
    """A clock that advances only in local steps, by a number of seconds for each number of threads."""

    def __init__(self, **seconds):
        self.now, self.seconds = 100.0, {int(name[2:]): taken for name, taken in seconds.items()}
        self.used = []

    def step(self):
        self.used.append(torch.get_num_threads())
        self.now += self.seconds[self.used[-1]]
        return self.used[-1]

    def run(self, threads, steps):
        """Return the numbers of threads used, with repetitions removed."""
        self.used = []
        assert [threads.step(lambda _round: self.step(), 0) for _ in range(steps)] == self.used
        return [number for number, _ in itertools.groupby(self.used)]


class Timed:
    """Local steps on a `Machine`."""

    def __init__(self, machine):
        self.machine, self.steps, self.undone = machine, 0, 0

    def __call__(self, _round):
        return float(self.machine.step())


def adapting(machine, most):
    torch.set_num_threads(most)
    return Threads(lambda: machine.now)


def test_the_fastest_number_of_threads_is_used_until_the_next_trial():
    machine = Machine(on1=0.3, on2=0.2, on4=0.1, on6=0.25)
    threads = adapting(machine, 6)
    assert machine.run(threads, 4 * STEPS) == [6, 1, 2, 4]
    assert (threads.number, torch.get_num_threads()) == (4, 4)
    assert machine.run(threads, 10) == [4]


def test_the_number_of_threads_adapts_to_rising_and_falling_load():
    machine = Machine(on1=0.3, on2=0.2)
    threads = adapting(machine, 2)
    machine.run(threads, 2 * STEPS)
    assert threads.number == 2
    machine.seconds |= {2: 8.0}  # another process keeps one core busy
    machine.run(threads, 100)
    assert threads.number == 1
    machine.seconds |= {2: 0.2}
    machine.run(threads, 2000)
    assert threads.number == 2


def test_the_number_of_threads_changes_only_for_a_tenth_more_speed():
    """Otherwise measurement noise would change the last bits every few seconds."""
    machine = Machine(on1=0.095, on2=0.1)
    threads = adapting(machine, 2)
    machine.run(threads, 2 * STEPS)
    assert threads.number == 2


def test_thread_trials_take_at_most_a_twentieth_of_the_time():
    """One slow step suffices to discard a number of threads."""
    machine = Machine(on1=0.01, on2=1.0)
    threads = adapting(machine, 2)
    machine.run(threads, 2 * STEPS)
    assert threads.number == 1
    began = machine.now
    while machine.now < began + RESTS * STEPS * 1.0 - 1.0:
        assert machine.run(threads, 1) == [1]
    assert machine.now - began > REST_S
    machine.run(threads, 1000)
    machine.run(threads, 20_000)
    slow = sum(number == 2 for number in machine.used)
    assert 1 <= slow * 1.0 <= (20_000 * 0.01 + slow) / RESTS


def test_errors_of_a_timed_step_reach_the_caller():
    machine = Machine(on1=0.1, on2=0.1)
    threads = adapting(machine, 2)
    with pytest.raises(ZeroDivisionError):
        threads.step(lambda turn: 1 // turn, 0)
    assert machine.run(threads, 2 * STEPS) == [2, 1]


@pytest.mark.parametrize(("asked", "used"), [(0, [2, 1]), (2, [2])])
def test_a_configured_number_of_threads_is_not_changed(asked, used, monkeypatch):
    """Equal runs give equal bits. Left out, the number adapts, and the status shows it."""
    torch.set_num_threads(2)
    machine = Machine(on1=0.1, on2=1.0)
    engine = Worker(clock=lambda: machine.now)
    assert isinstance(engine.handle(structs.replace(open_request(manifest()), threads=asked)), calls.Opened)
    monkeypatch.setattr(engine.trainer, "local_step", Timed(machine))
    assert done(engine, calls.Train(0, 2 * STEPS)).figures.threads == used[-1]
    assert [number for number, _ in itertools.groupby(machine.used)] == used


def test_the_owner_can_change_the_number_of_threads_at_run_time(monkeypatch):
    """0 selects the fastest number again, up to torch's initial one."""
    torch.set_num_threads(2)
    machine = Machine(on1=1.0, on2=0.1)
    engine = Worker(clock=lambda: machine.now)
    assert isinstance(engine.handle(structs.replace(open_request(manifest()), threads=1)), calls.Opened)
    monkeypatch.setattr(engine.trainer, "local_step", Timed(machine))
    for number, (asked, used) in enumerate([(None, [1]), (2, [2]), (1, [1]), (0, [2, 1, 2])]):
        machine.used.clear()
        if asked is not None:
            assert done(engine, calls.Limit(asked)) == calls.Done()
        assert done(engine, calls.Train(number, 3 * STEPS)).figures.threads == used[-1]
        assert [number for number, _ in itertools.groupby(machine.used)] == used
        done(engine, calls.Mix(number))
