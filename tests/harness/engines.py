"""Engines called by hand, as the daemon would call them."""

import os
import sys
from contextlib import contextmanager

from msgspec import structs

from starling.node.config.schema import CompressSection, Manifest, MixSection, OptimizerSection, PaceSection, PartitionSection, TaskSection
from starling.node.engine.worker import Worker
from starling.node.rpc import calls


def manifest(kind="digits", nodes=4, *, mix="pet", pace="steps", seed=5, optimizer=None, compress=None, params=None, **rounds):
    """Return a small swarm's manifest; further keyword arguments are keys of the pace."""
    if kind == "quadratic":
        params = {"nodes": nodes, "dim": 20, "dtype": "float64"} | (params or {})
    mixing = mix if isinstance(mix, MixSection) else MixSection(kind=mix)
    return Manifest(
        seed=seed,
        task=TaskSection(kind=kind, **(params or {})),
        partition=PartitionSection(shards=nodes),
        optimizer=optimizer or OptimizerSection(),
        mix=mixing,
        compress=compress or CompressSection(),
        pace=PaceSection(kind=pace, **{"local_steps": 5, "rounds": 50} | rounds),
    )


def open_request(agreed, shard=0, node="a", checkpoint=""):
    return calls.Open(agreed, "", shard, "cpu", 1, str(checkpoint), node)


def opened(agreed, shard=0, node="a", checkpoint=""):
    """Return an engine after Open."""
    engine = Worker(clock=lambda: 0.0)
    assert isinstance(engine.handle(open_request(agreed, shard, node, checkpoint)), calls.Opened)
    return engine


@contextmanager
def island(agreed, ranks=2, node="a", **changes):
    """Return an engine whose batches several processes compute; they end afterwards."""
    engine = Worker(clock=lambda: 0.0)
    reply = engine.handle(structs.replace(open_request(agreed, node=node), ranks=ranks, **changes))
    assert isinstance(reply, calls.Opened), reply
    try:
        yield engine
    finally:
        engine.trainer.local_step.source.island.close()


def failing_rank(folder, monkeypatch, method, does):
    """Return the call that opens an island of two whose other process does this in a method of its task."""
    (folder / "failing.py").write_text(
        "import os\nimport torch\nfrom starling.node.tasks.digits import Digits\n"
        "class Failing(Digits):\n"
        f"    def {method}(self, *given):\n"
        "        if os.environ.get('FAILING') == str(os.getppid()):\n"
        f"            {does}\n"
        f"        return super().{method}(*given)\n"
    )
    monkeypatch.setenv("FAILING", str(os.getpid()))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    return structs.replace(open_request(manifest("failing:Failing")), ranks=2, code=str(folder))


def run(engine, call):
    """Make a call and do its work; return its reply."""
    reply = engine.handle(call)
    while reply is None:
        reply = engine.step()
    return reply


def done(engine, call):
    """Make a call that must succeed."""
    reply = run(engine, call)
    assert not isinstance(reply, calls.Refused), reply
    return reply


def every(engines, call):
    """Make the same call to all."""
    for engine in engines.values():
        done(engine, call)


def refused_as(kind, reply, words=""):
    """Assert that it is refused, in one line."""
    assert isinstance(reply, calls.Refused), reply
    assert reply.kind == kind
    assert words in reply.reason
    assert "\n" not in reply.reason
    return reply


def x_of(engine):
    """Return a copy of the engine's parameters."""
    return engine.vector


def state_of(engine):
    """Return the flows of its edges."""
    return engine.replica.memory.ledger


def exchange(engines, i, j, *, seq, round=0, theta=0.5, inc=0, budget=0):
    """Run one transaction between engines named by peer id, all four calls; the smaller id initiates. Return request and response."""
    i, j = sorted((i, j))
    offered = done(engines[i], calls.Offer(j, inc, seq, round, theta, budget))
    answer = calls.Answer(i, inc, seq, round, theta, offered.gain, offered.payload, borne=offered.borne, reference=offered.reference)
    answered = done(engines[j], answer)
    clip = 1.0 if answered.clip is None else answered.clip
    done(engines[i], calls.Apply(j, inc, seq, answered.payload, answered.borne, answered.share, clip))
    done(engines[j], calls.Commit(i, inc, seq))
    return offered, answered


def play(engines, agreed, schedule):
    """Run rounds in steps pace: `schedule(round)` gives (peer, peer, theta)."""
    turns = {}
    for turn in range(agreed.pace.rounds):
        for peer in sorted(engines):
            done(engines[peer], calls.Train(turn, agreed.pace.local_steps))
        for i, j, theta in schedule(turn):
            pair = tuple(sorted((i, j)))
            turns[pair] = turns.get(pair, 0) + 1
            exchange(engines, i, j, seq=turns[pair], round=turn, theta=theta)
        for peer in sorted(engines):
            done(engines[peer], calls.Mix(turn))


class Inside:
    """An engine in this process, called as `starling.kernels.memory.Worker` is."""

    def __init__(self, call, clock=lambda: 0.0, work=None):
        self.engine = Worker(clock=clock, work=work)
        self.parameters = self.done(call).parameters

    def done(self, call):
        return done(self.engine, call)
