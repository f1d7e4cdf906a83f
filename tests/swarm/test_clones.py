"""Clones of one attacker among whole nodes in virtual time: identities that learn class 1 as 7 and all send the model of the first of them.

They are half of eight nodes, more than any counting rule tolerates; every node pulls all others, and data are equal.
"""

import msgspec
import pytest

from starling.gossip.exchange.attestation import body
from starling.gossip.wire.schema import NotNow, Pulled
from starling.node.config.schema import CompressSection, OverlaySection, PartitionSection, RobustSection
from starling.node.simulate.matrix.byzantine import success
from starling.robust.attacks.data import Clones
from tests.harness.stories import virtual
from tests.harness.swarms import digits, lie, story

NODES, LIARS, ROUNDS = 8, (4, 5, 6, 7), 16


def one_voice(swarm):
    """Let all liars publish what the first of them has published, each signed by itself; earlier requests wait."""
    first = swarm.nodes[LIARS[0]]

    def of(clone):
        me, name = clone.node.setup.identity, clone.node.setup.swarm

        def forge(message):
            if not isinstance(message, Pulled):
                return [message]
            said = first.node.running.exchange._core._published.get(message.round)
            if said is None:
                return [NotNow(message.nonce, message.round, "wait")]
            signature = me.sign(body(name, me.peer_id, message.incarnation, message.round, said.digest))
            return [Pulled(message.nonce, message.round, message.incarnation, said.digest, signature, said.payload)]

        return forge

    for index in LIARS:
        lie(swarm.nodes[index].node.network, "exchange", of(swarm.nodes[index]), lambda _peer: True)


def named_as_wanted(virtual):
    """Return the share of held-out samples of class 1 that a node classifies as 7."""
    model = virtual.engine.trainer.model
    counts = [success(Clones())(model.module, batch) for batch in model.data.held_out(256)]
    return sum(hits for hits, _ in counts) / sum(samples for _, samples in counts)


@virtual(1)
@pytest.mark.parametrize("rule", [pytest.param("foolsgold"), pytest.param("mean", marks=pytest.mark.acceptance)])
async def test_exact_clones_lose_their_weight_although_half_of_all(rule):
    agreed = digits(NODES, rounds=ROUNDS, local_steps=4, mix="gather", compress=CompressSection(select="full", response="fp16"))
    agreed = msgspec.structs.replace(
        agreed,
        overlay=OverlaySection(kind="pull", k=NODES - 1),
        robust=RobustSection(rule=rule),
        partition=PartitionSection(shards=NODES, alpha=100.0),
    )
    swarm = story(agreed, 1, attacks=dict.fromkeys(LIARS, "clones"))
    async with swarm.running(NODES):
        one_voice(swarm)
        await swarm.finished()
        liars = {swarm.nodes[index].peer_id for index in LIARS}
        honest = [virtual for index, virtual in swarm.nodes.items() if index not in LIARS]
        worst, best = (f(virtual.node.progress.evaluated.value for virtual in honest) for f in (min, max))
        successes = [named_as_wanted(virtual) for virtual in honest]
        assert not any(virtual.node.events.faults for virtual in honest), "nothing that they do is against the protocol"
        if rule == "mean":
            assert best < 0.86
            assert min(successes) > 0.3
            return
        assert worst > 0.87
        assert max(successes) < 0.05
        for virtual in honest:
            for peer in {other.peer_id for other in swarm.nodes.values()} - {virtual.peer_id}:
                assert (virtual.node.policy.standing(peer).clipped > 0.5) == (peer in liars)
