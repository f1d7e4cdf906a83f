"""Whole nodes take nothing from peers that are repeatedly far away, and from no others."""

from itertools import count

import msgspec
import pytest

from starling.node.config.schema import Manifest
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.net.faults import Drop
from tests.harness.stories import virtual
from tests.harness.swarms import assert_flows_cancel, digits, drain, rounds_done, story, until

NODES = 6
LIAR = NODES - 1


def defended(pace: str, **keys) -> Manifest:
    agreed = digits(NODES, rounds=35 if pace == "steps" else 70, pace=pace, **keys)
    return msgspec.structs.replace(agreed, mix=msgspec.structs.replace(agreed.mix, defended=True))


def lie(virtual, factor: float | None) -> None:
    """Let a node exchange from now on as if its model were multiplied by this factor; None: as if it had never moved."""
    session = virtual.engine.session
    vectors, start = session.rounds.vectors, session.replica.origin
    honest = vectors.vector
    vectors.vector = (lambda peer: start) if factor is None else (lambda peer: factor * honest(peer))


def refusals(virtual) -> set[str]:
    """Return the peers that a node refuses, from its log."""
    return {it.text.split()[3] for it in virtual.node.events.recent if it.name == "peer_refused"}


@virtual(1)
@pytest.mark.slow
@pytest.mark.parametrize(("pace", "factor"), [("steps", -2.0), ("steps", None), ("clock", 0.0)])
async def test_a_liar_is_refused_by_its_partners_and_costs_the_others_little(pace, factor):
    """It exchanges as if its model were negated, zero, or still the one that all began with."""
    swarm = story(defended(pace), 1)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 5))
        liar, honest = swarm.nodes[LIAR], [swarm.nodes[index] for index in range(LIAR)]
        lie(liar, factor)
        await swarm.finished()
        knowing = [it for it in honest if refusals(it)]
        assert len(knowing) > LIAR / 2
        assert {peer for it in knowing for peer in refusals(it)} == {liar.peer_id}
        for it in knowing:
            assert it.node.events.faults[liar.peer_id]["model_far"] >= 2
            (row,) = [row for row in take_snapshot(it.node).peers if row.peer == liar.peer_id]
            assert row.score > 0.0
            assert it.node.policy.allows(liar.peer_id), "that it was far proves nothing"
        assert min(it.node.progress.evaluated.value for it in honest) > 0.85
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0


@virtual(2)
@pytest.mark.slow
@pytest.mark.parametrize(("pace", "mix"), [("steps", "pet"), ("steps", "moments"), ("clock", "pet")])
async def test_honest_nodes_are_not_refused_despite_loss_late_joining_and_sleep(pace, mix):
    sent = count()

    def loses(_src, _dst, _now):
        return Drop() if next(sent) % 10 < 3 else None

    swarm = story(defended(pace, mix=mix, quorum=4), 2, loses)
    async with swarm.running(LIAR):
        await until(lambda: rounds_done(swarm, 10))
        await swarm.start(LIAR)
        await until(lambda: rounds_done(swarm, 15))
        await swarm.crash(1)
        await until(lambda: rounds_done(swarm, 25))
        await swarm.start(1)
        await swarm.finished()
        assert not any(refusals(it) for it in swarm.nodes.values())
