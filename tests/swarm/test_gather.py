"""Pulled exchanges of whole nodes on digits with a robust rule, under loss, crashes, stragglers, liars and caps.

Eight nodes pull three peers per round, of whom one may be Byzantine (`robust.f`).
"""

from statistics import mean

import msgspec
import pytest
import trio

from starling.gossip.exchange.attestation import body, digest
from starling.gossip.wire.schema import NotNow, Pull, Pulled
from starling.node.config.schema import CompressSection, NodeConfig, OverlaySection, PartitionSection, RobustSection
from starling.node.net.faults import loss
from tests.harness.stories import virtual
from tests.harness.swarms import digits, events, faults, lie, rounds_done, story, until, values

NODES = 8
ROUNDS = 16  # rounds of a story with a liar
LEARNED = 0.85  # accuracy of the worst node within thirty rounds; guessing gives 0.1
MEAN = 0.9


def agreement(*, nodes=NODES, rounds=30, quorum=None, **pace):
    agreed = digits(
        nodes, rounds=rounds, quorum=quorum or nodes, mix="gather", compress=CompressSection(select="full", response="fp16"), **pace
    )
    return msgspec.structs.replace(
        agreed,
        overlay=OverlaySection(kind="pull", k=3),
        robust=RobustSection(rule="cs_nnm", f=1),
        partition=PartitionSection(shards=nodes, alpha=1.0),
    )


@pytest.mark.acceptance
@virtual(1)
async def test_eight_nodes_learn_under_heavy_loss_and_a_crash_and_the_crashed_one_comes_back(seed):
    swarm = story(agreement(rounds=22), seed)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 1))
        swarm.hub.rules.append(loss(0.3, seed))
        await until(lambda: rounds_done(swarm, 6))
        gone = swarm.nodes[4].peer_id
        await swarm.crash(4)
        await until(lambda: all(gone not in v.node.running.membership.members for v in swarm.nodes.values()))
        await until(lambda: rounds_done(swarm, 11))
        back = await swarm.start(4)
        await swarm.finished()
        assert back.node.progress.joined_late
        assert back.node.running.exchange.stats.committed > 10
        assert min(values(swarm)) > LEARNED
        assert mean(values(swarm)) > MEAN
        for virtual in swarm.nodes.values():
            stats = virtual.node.running.exchange.stats
            assert virtual.node.progress.round == 22
            assert stats.committed > 0.6 * (stats.committed + stats.timeout + stats.busy + stats.aborted)
        assert any(v.node.running.exchange.stats.timeout for v in swarm.nodes.values())  # the fault happened
        assert {reason for _, reason in faults(swarm)} <= {
            "not_a_member",
            "answer_unasked",
        }  # exchanges of the restarted node in both directions
        assert not any({"peer_quarantine", "peer_ban"} & set(events(v)) for v in swarm.nodes.values())


def resigned(liar, changed):
    """Return an honest answer with changed vector and round, signed anew by its sender."""

    def forge(message):
        if not isinstance(message, Pulled):
            return [message]
        payload, round_ = changed(message.payload, message.round)
        told, me = digest(payload), liar.node.setup.identity
        statement = body(liar.node.setup.swarm, me.peer_id, message.incarnation, round_, told)
        return [Pulled(message.nonce, round_, message.incarnation, told, me.sign(statement), payload)]

    return forge


def numberless(payload):
    return payload[:11] + b"\x00\x7e" * ((len(payload) - 11) // 2)


def huge(payload):
    return payload[:11] + b"\xff\x7b" * ((len(payload) - 11) // 2)  # 65504, the largest fp16


LIES = {
    "garbage": (lambda _liar: lambda _message: [b"\xc1" * 100], {"frame_not_msgpack"}),
    "no numbers": (lambda liar: resigned(liar, lambda p, r: (numberless(p), r)), {"not_finite"}),
    "the largest numbers": (lambda liar: resigned(liar, lambda p, r: (huge(p), r)), set()),
    "a later round": (lambda liar: resigned(liar, lambda p, r: (p, r + 10)), set()),
    "always wait": (lambda _liar: lambda m: [NotNow(m.nonce, max(0, m.round - 9), "wait") if isinstance(m, Pulled) else m], set()),
    "a question a hundred times": (lambda _liar: lambda m: [m] * (100 if isinstance(m, Pull) else 1), {"asked_too_often"}),
}
"""name -> (what it does, the reasons for which it is blamed; none if it does nothing that only a liar can do)"""


@virtual(1)
@pytest.mark.parametrize(
    "attack", [name if number % 4 == 0 else pytest.param(name, marks=pytest.mark.acceptance) for number, name in enumerate(LIES)]
)
async def test_a_liar_harms_only_itself(attack):
    forge, reasons = LIES[attack]
    swarm = story(agreement(nodes=6, rounds=ROUNDS, local_steps=6), 1)
    async with swarm.running(5):
        liar = await swarm.start(5)
        del swarm.nodes[5]
        lie(liar.node.network, "exchange", forge(liar), lambda _peer: rounds_done(swarm, 5))
        await until(lambda: rounds_done(swarm, 5))
        honest_s = trio.current_time()
        await swarm.finished()
        assert trio.current_time() - honest_s < 3.0 * honest_s + 5.0
        assert min(values(swarm)) > LEARNED - 0.1
        for virtual in swarm.nodes.values():
            assert virtual.node.progress.round == ROUNDS
            assert virtual.node.progress.figures.local_steps >= 0.8 * ROUNDS * 6  # no rounds were skipped
        assert {peer for peer, _ in faults(swarm)} <= {liar.peer_id}
        # its last honest and first forged vector may be for one round, which is a proof
        assert {reason for _, reason in faults(swarm)} - {"equivocation"} == reasons


@virtual(1)
async def test_a_peer_that_is_always_clipped_earns_no_reputation_and_no_honest_node_is(seed):
    swarm = story(agreement(nodes=6, rounds=14, local_steps=4), seed, attacks={5: "sign_flip"})
    async with swarm.running(6):
        await swarm.finished()
        liar = swarm.nodes.pop(5).peer_id
        for virtual in swarm.nodes.values():
            standing = {peer: virtual.node.policy.standing(peer) for peer in virtual.node.running.membership.members}
            others = {peer: found for peer, found in standing.items() if peer not in (liar, virtual.peer_id)}
            assert standing[liar].clipped > 0.4
            assert standing[liar].contribution < 0.25 * min(found.contribution for found in others.values())
            assert max(found.clipped for found in others.values()) < 0.25


@pytest.mark.acceptance
@virtual(1)
async def test_sixteen_nodes_with_unequal_data_become_active_and_three_liars_do_not(seed):
    agreed = msgspec.structs.replace(
        agreement(nodes=16, rounds=75, local_steps=6),
        overlay=OverlaySection(kind="pull", k=6),
        robust=RobustSection(rule="cs_nnm", f=2),
        partition=PartitionSection(shards=16, alpha=0.5),
    )
    swarm = story(agreed, seed, attacks=dict.fromkeys((13, 14, 15), "sign_flip"))
    async with swarm.running(16):
        await swarm.finished()
        liars = {swarm.nodes.pop(index).peer_id for index in (13, 14, 15)}
        for virtual in swarm.nodes.values():
            for peer in set(virtual.node.running.membership.members) - {virtual.peer_id}:
                standing = virtual.node.policy.standing(peer)
                if peer in liars:
                    assert (standing.state, standing.contribution) == ("probation", 0.0)
                else:
                    assert standing.clipped < 0.1
                    assert standing.state == "active"


@virtual(1)
async def test_a_late_joiner_takes_the_swarms_model_and_a_straggler_keeps_up_by_doing_less(seed):
    swarm = story(agreement(nodes=6, rounds=24, quorum=5), seed, slow={4: 5.0})
    async with swarm.running(5):
        await until(lambda: all(swarm.nodes[i].node.progress.round >= 9 for i in range(4)))
        late = await swarm.start(5)
        await swarm.finished()
        assert late.node.progress.joined_late
        assert late.node.progress.figures.local_steps <= 17 * 10
        assert swarm.nodes[4].node.progress.figures.local_steps < 0.7 * 24 * 10
        assert swarm.nodes[4].node.running.exchange.stats.committed > 10
        assert all(swarm.nodes[i].node.progress.figures.local_steps > 0.9 * 24 * 10 for i in range(4))
        assert min(values(swarm)) > LEARNED
        assert not faults(swarm)


@pytest.mark.acceptance
@virtual(1)
async def test_a_volunteer_with_a_slow_connection_serves_few_and_still_takes_part(seed):
    swarm = story(agreement(nodes=6, rounds=20), seed)
    async with swarm.running(5):
        swarm.config = NodeConfig(linger_s=1e6, threads=1, trust=True, up_bytes_per_s=10_000)
        thin = await swarm.start(5)
        began = trio.current_time()
        await swarm.finished()
        took_s = trio.current_time() - began
        assert thin.node.running.exchange.payload_bytes < 10_000 * (took_s + 1.0)
        assert thin.node.running.exchange.stats.committed > 0.9 * 60
        assert sum(swarm.nodes[i].node.running.exchange.stats.busy for i in range(5)) > 10
        assert min(values(swarm)) > LEARNED
        assert not faults(swarm)
