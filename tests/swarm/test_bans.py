"""Owners ban a hostile member of a swarm of acquaintances: its effects disappear, and the others recover."""

from functools import cache
from statistics import mean

import msgspec
import pytest
import torch
import trio

from starling.gossip.errors import ConfigError, PeerUnreachable
from starling.node.config import presets
from starling.node.config.schema import Manifest
from starling.node.daemon.observe.control_commands import carry_out
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.net.memory_network import address_of
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.stories import replayable, virtual
from tests.harness.swarms import assert_flows_cancel, digits, drain, events, flows_with, rounds_done, story, until

HONEST = 4
LIAR = HONEST
ROUNDS = 70
BAN = 30  # the round in which the ban comes
POINTS = 0.05


def consensus(swarm, honest: int = HONEST) -> float:
    """Return the root mean squared distance of the honest models from their mean."""
    models = torch.stack([swarm.nodes[index].vector for index in range(honest)])
    return float((models - models.mean(0)).square().sum(1).mean().sqrt())


def vouched(nodes: int = HONEST + 1, rounds: int = ROUNDS) -> Manifest:
    """Return the preset with listed instead of invited members."""
    sets = ["preset=vouched", "admission.kind=allow", f"partition.shards={nodes}", f"pace.rounds={rounds}"]
    sets += ["pace.local_steps=5", "pace.max_wait_s=1.0", "membership.probe_s=0.5", "membership.timeout_s=0.25"]
    sets += ["membership.suspicion_s=1.0", "optimizer.schedule=constant", "pace.evaluate_every=1000"]
    agreed = presets.load(Manifest, assignments=[*sets, f"pace.quorum={nodes}"])
    everybody = VirtualSwarm(agreed, seed=0)
    members = tuple(everybody.identity(index).peer_id for index in range(nodes))
    return msgspec.structs.replace(agreed, admission=msgspec.structs.replace(agreed.admission, members=members))


async def accuracy(swarm) -> list[float]:
    """Return the final accuracy of the honest."""
    await swarm.finished()
    return [swarm.nodes[index].node.progress.evaluated.value for index in range(HONEST)]


@cache
def undisturbed() -> tuple[float, float]:
    """Return the mean accuracy of the same nodes if all are honest, and virtual seconds per round."""

    async def calm():
        swarm = story(vouched(), 0)
        async with swarm.running(HONEST + 1):
            await until(lambda: rounds_done(swarm, BAN))
            took_s = await until(lambda: rounds_done(swarm, ROUNDS))
            return mean(await accuracy(swarm)), took_s / (ROUNDS - BAN)

    return replayable(calm, 0)


def lie(virtual) -> None:
    """Let a node exchange from now on as if its model were negated and twice as large."""
    vectors = virtual.engine.session.rounds.vectors
    honest = vectors.vector
    vectors.vector = lambda peer: -2.0 * honest(peer)


@virtual(1)
async def test_a_hostile_member_is_banned_by_hand_and_the_others_recover():
    """Pairs are not defended, or the nodes would refuse it by themselves."""
    agreed = digits(HONEST + 1, rounds=45)
    swarm = story(msgspec.structs.replace(agreed, mix=msgspec.structs.replace(agreed.mix, defended=False)), 1)
    async with swarm.running(HONEST + 1):
        await until(lambda: rounds_done(swarm, 15))
        liar, calm = swarm.nodes[LIAR], consensus(swarm)
        lie(liar)
        await until(lambda: rounds_done(swarm, 30))
        hurt = consensus(swarm)
        assert hurt > 1.5 * calm
        assert flows_with(swarm, liar.peer_id)
        honest = [swarm.nodes[index] for index in range(HONEST)]
        looks = [virtual.node.policy.standing(liar.peer_id) for virtual in honest]
        others = [v.node.policy.standing(w.peer_id).clipped for v in honest for w in honest if v is not w]
        assert mean(look.clipped for look in looks) > mean(others) + 0.2
        assert all(look.score == 0.0 for look in looks)  # being far away is no fault
        for index in range(HONEST):
            node = swarm.nodes[index].node
            answer = await carry_out(node, "ban", {"peer": liar.peer_id[-7:], "why": "turned around", "for_s": 3600.0})
            assert answer["peer"] == liar.peer_id
            assert answer["shut_out_s"] == pytest.approx(3600.0)
            (row,) = [row for row in take_snapshot(node).peers if row.peer == liar.peer_id]
            assert (row.state, row.standing, row.why) == ("banned", "ban", "turned around")
        del swarm.nodes[LIAR]
        await until(lambda: not flows_with(swarm, liar.peer_id), 2.0)
        with pytest.raises(PeerUnreachable):
            await liar.node.network.dial(address_of(swarm.nodes[0].peer_id))
        await until(lambda: all(liar.peer_id not in v.node.running.membership.members for v in swarm.nodes.values()))
        await swarm.finished()
        assert consensus(swarm) < 0.75 * hurt
        assert not flows_with(swarm, liar.peer_id)
        values = [virtual.node.progress.evaluated.value for virtual in swarm.nodes.values()]
        assert min(values) > 0.85
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0


@virtual(1)
async def test_a_ban_survives_a_restart_and_ends_when_revoked():
    swarm = story(digits(3, rounds=0, quorum=2), 1)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 3))
        banned = swarm.nodes[2].peer_id
        await carry_out(swarm.nodes[0].node, "ban", {"peer": banned})
        with pytest.raises(ConfigError, match="may be any of"):
            await carry_out(swarm.nodes[0].node, "trust", {"peer": "12D3KooW"})
        await swarm.crash(0)
        await swarm.crash(2)
        await until(lambda: len(swarm.nodes[1].node.running.membership.members) == 1)
        back = await swarm.start(0)
        assert back.node.network.refuses(banned)
        await swarm.start(2)
        await until(lambda: rounds_done(swarm, 6))
        assert back.node.network.refuses(banned)
        assert back.node.running.exchange.committed(banned) == 0
        await carry_out(back.node, "unban", {"peer": banned[-6:]})
        assert "peer_unban" in events(back)
        await until(lambda: back.node.running.exchange.committed(banned) > 0)
        assert back.node.policy.standing(banned).state == "probation"
        await trio.sleep(0.1)


@virtual(1)
@pytest.mark.parametrize("pace", ["steps", "clock"])
async def test_exchanges_improve_the_score_in_both_paces(pace):
    swarm = story(digits(3, rounds=12, pace=pace), 1)
    async with swarm.running(3):
        await swarm.finished()
        for virtual in swarm.nodes.values():
            for other in swarm.nodes.values():
                if other is not virtual:
                    standing = virtual.node.policy.standing(other.peer_id)
                    assert standing.contribution > 0.2
                    assert standing.score == 0.0
                    assert standing.staleness < 0.5


@pytest.mark.acceptance
@virtual(0, before=undisturbed)
@pytest.mark.parametrize("attack", ["sign_flip", "huge", "dissensus"])
async def test_a_liar_affects_an_invited_swarm_until_it_is_banned(attack):
    swarm = story(vouched(), 0, attacks={LIAR: attack})
    async with swarm.running(HONEST + 1):
        liar = swarm.nodes[LIAR]
        honest = [swarm.nodes[index] for index in range(HONEST)]
        clip = swarm.manifest.mix.clip_norm
        for done in range(10, BAN + 1, 10):
            await until(lambda done=done: all(virtual.node.progress.round >= done for virtual in honest))
            assert all(bool(torch.isfinite(virtual.vector).all()) for virtual in honest)
            assert consensus(swarm) < clip
        for virtual in honest:
            await carry_out(virtual.node, "ban", {"peer": liar.peer_id})
        del swarm.nodes[LIAR]
        for done in range(BAN + 10, ROUNDS, 10):
            await until(lambda done=done: rounds_done(swarm, done))
            assert consensus(swarm) < clip
        took_s = await until(lambda: rounds_done(swarm, ROUNDS))
        assert not flows_with(swarm, liar.peer_id)
        good, round_s = undisturbed()
        assert mean(await accuracy(swarm)) > good - POINTS
        assert took_s < 1.5 * round_s * 10
        await drain(swarm)
        assert_flows_cancel(swarm)


@virtual(0)
@pytest.mark.acceptance
@pytest.mark.parametrize("ends", ["ban", "death"])
async def test_the_effect_of_long_lying_does_not_rebound_when_the_liar_leaves(ends):
    swarm = story(vouched(8, 96), 0, attacks={7: "dissensus"})
    async with swarm.running(8):
        liar = swarm.nodes[7]
        await until(lambda: all(swarm.nodes[index].node.progress.round >= 60 for index in range(7)))
        pushed = consensus(swarm, 7)
        for index in range(7) if ends == "ban" else ():
            await carry_out(swarm.nodes[index].node, "ban", {"peer": liar.peer_id})
        if ends == "ban":
            del swarm.nodes[7]
        else:
            await swarm.crash(7)
        await until(lambda: not flows_with(swarm, liar.peer_id))
        for done in range(70, 91, 5):
            await until(lambda done=done: rounds_done(swarm, done))
            assert consensus(swarm, 7) < pushed
        assert any("edges_anew" in events(virtual) for virtual in swarm.nodes.values())
        await swarm.finished()
        assert min(virtual.node.progress.evaluated.value for virtual in swarm.nodes.values()) > 0.9
