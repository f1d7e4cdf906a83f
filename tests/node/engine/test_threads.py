"""On how many threads an engine computes, and that it changes no byte of a payload."""

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
from tests.harness.engines import done, exchange, manifest, opened, opening


@pytest.fixture(autouse=True)
def restored():
    """The number of threads is the process's, and other tests have theirs."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CODECS)
def test_a_payload_and_what_is_read_of_it_are_the_same_bytes_on_any_number_of_threads(name):
    """Signatures and digests are of bytes. Long enough for torch to use its threads."""
    x, payloads, read = torch.randn(100_003, generator=generator(5)), set(), set()
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        coder = codec.coder(name, x.numel(), "cpu")
        payloads.add(coder.encode(x, 1))
        read.add(coder.decode(min(payloads))[1].numpy().tobytes())
    assert len(payloads) == len(read) == 1


def test_one_thread_is_for_the_time_being_also_where_it_fails():
    torch.set_num_threads(3)
    with pytest.raises(ZeroDivisionError), one_thread():
        torch.set_num_threads(1 // (torch.get_num_threads() - 1))
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("kind", ["dsgd", "gather"])
def test_payloads_are_coded_on_one_thread(kind, monkeypatch):
    """Beside a busy process two are forty times slower; local steps keep theirs."""
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
    """Time passes only in local steps: so many seconds of one on each number of threads."""

    def __init__(self, **seconds):
        self.now, self.seconds = 100.0, {int(name[2:]): taken for name, taken in seconds.items()}
        self.used = []

    def step(self):
        self.used.append(torch.get_num_threads())
        self.now += self.seconds[self.used[-1]]
        return self.used[-1]

    def run(self, threads, steps):
        """Which numbers were used, each once for a run of the same."""
        self.used = []
        assert [threads.step(lambda _round: self.step(), 0) for _ in range(steps)] == self.used
        return [number for number, _ in itertools.groupby(self.used)]


class Timed:
    """Local steps of a machine."""

    def __init__(self, machine):
        self.machine, self.steps, self.undone = machine, 0, 0

    def __call__(self, _round):
        return float(self.machine.step())


def adapting(machine, most):
    torch.set_num_threads(most)
    return Threads(lambda: machine.now)


def test_the_fastest_number_is_found_and_kept_until_the_next_trial():
    machine = Machine(on1=0.3, on2=0.2, on4=0.1, on6=0.25)
    threads = adapting(machine, 6)
    assert machine.run(threads, 4 * STEPS) == [6, 1, 2, 4]
    assert (threads.number, torch.get_num_threads()) == (4, 4)
    assert machine.run(threads, 10) == [4]


def test_the_number_follows_the_load_of_the_machine_both_ways():
    machine = Machine(on1=0.3, on2=0.2)
    threads = adapting(machine, 2)
    machine.run(threads, 2 * STEPS)
    assert threads.number == 2
    machine.seconds |= {2: 8.0}  # a neighbour holds one core
    machine.run(threads, 100)
    assert threads.number == 1
    machine.seconds |= {2: 0.2}
    machine.run(threads, 2000)
    assert threads.number == 2


def test_a_number_is_left_only_for_one_that_is_a_tenth_faster():
    """Or noise would change the last bits every few seconds."""
    machine = Machine(on1=0.095, on2=0.1)
    threads = adapting(machine, 2)
    machine.run(threads, 2 * STEPS)
    assert threads.number == 2


def test_trials_take_no_more_than_a_twentieth_of_all_time():
    """One slow step of a number is enough to know that it is hopeless."""
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


def test_a_step_that_fails_is_the_callers():
    machine = Machine(on1=0.1, on2=0.1)
    threads = adapting(machine, 2)
    with pytest.raises(ZeroDivisionError):
        threads.step(lambda turn: 1 // turn, 0)
    assert machine.run(threads, 2 * STEPS) == [2, 1]


@pytest.mark.parametrize(("asked", "used"), [(0, [2, 1]), (2, [2])])
def test_a_number_that_the_owner_gives_is_not_changed(asked, used, monkeypatch):
    """Equal runs give equal bits; left out, it adapts, and the status says how many there are."""
    torch.set_num_threads(2)
    machine = Machine(on1=0.1, on2=1.0)
    engine = Worker(clock=lambda: machine.now)
    assert isinstance(engine.handle(structs.replace(opening(manifest()), threads=asked)), calls.Opened)
    monkeypatch.setattr(engine.trainer, "local_step", Timed(machine))
    assert done(engine, calls.Train(0, 2 * STEPS)).figures.threads == used[-1]
    assert [number for number, _ in itertools.groupby(machine.used)] == used


def test_the_owner_changes_the_number_while_it_computes(monkeypatch):
    """0 is again as many as are fastest, of as many as torch had at first."""
    torch.set_num_threads(2)
    machine = Machine(on1=1.0, on2=0.1)
    engine = Worker(clock=lambda: machine.now)
    assert isinstance(engine.handle(structs.replace(opening(manifest()), threads=1)), calls.Opened)
    monkeypatch.setattr(engine.trainer, "local_step", Timed(machine))
    for number, (asked, used) in enumerate([(None, [1]), (2, [2]), (1, [1]), (0, [2, 1, 2])]):
        machine.used.clear()
        if asked is not None:
            assert done(engine, calls.Limit(asked)) == calls.Done()
        assert done(engine, calls.Train(number, 3 * STEPS)).figures.threads == used[-1]
        assert [number for number, _ in itertools.groupby(machine.used)] == used
        done(engine, calls.Mix(number))
