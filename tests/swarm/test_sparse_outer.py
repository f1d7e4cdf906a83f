"""Sparse outer steps on whole nodes: outer parameters are bitwise equal, also again after loss, omission, a crash and a late join."""

from random import Random

import msgspec
import pytest
import torch
import trio

from starling.gossip.exchange.attestation import body, digest
from starling.gossip.mix.broadcast_codec import ANCHOR_BYTES, anchor_digest
from starling.gossip.wire.schema import NotNow, Pulled, Relayed, StateOffer
from starling.node.config.schema import CompressSection, MixSection, OverlaySection
from starling.node.net.faults import Drop
from starling.node.rpc import calls
from tests.harness.sections import taken
from tests.harness.stories import virtual
from tests.harness.swarms import digits, events, lie, rounds_done, story, until, values

NODES = 5
LEARNED = 0.85  # accuracy of the worst node; guessing gives 0.1


def agreement(rounds):
    compress = taken(CompressSection, select="chunk_top_k", ratio=0.05, response="spread1")
    agreed = digits(NODES, rounds=rounds, quorum=4, compress=compress, local_steps=5, evaluate_every=rounds)
    return msgspec.structs.replace(agreed, mix=taken(MixSection, kind="sparse_outer", decay=0.9), overlay=OverlaySection(kind="complete"))


@virtual(more=(1,))
async def test_without_faults_all_nodes_have_equal_outer_parameters_to_the_bit(seed):
    """They are the model that status and evaluation use; each node trains its own."""
    swarm = story(agreement(30), seed)
    async with swarm.running(NODES):
        await swarm.finished()
        anchors = torch.stack([v.vector for v in swarm.nodes.values()])
        assert torch.equal(anchors, anchors[:1].expand_as(anchors))
        assert len({anchor_digest(v.engine.replica.x) for v in swarm.nodes.values()}) == NODES
        assert min(values(swarm)) > LEARNED
        assert not any("anchor_parted" in events(v) for v in swarm.nodes.values())


@virtual(1, more=(2, 3))
async def test_a_crash_and_a_late_join_in_one_round_leave_equal_outer_parameters(seed):
    """Numbers of members differ for a while, so outer parameters diverge; the majority's are fetched."""
    swarm = story(agreement(60), seed)  # a repair may fail, and may make its node diverge again by the round that it takes
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 10))
        await swarm.crash(3)
        await swarm.start(4)
        await swarm.finished()
        living = [swarm.nodes[index] for index in (0, 1, 2, 4)]
        assert len({anchor_digest(v.vector) for v in living}) == 1
        assert swarm.nodes[4].node.progress.joined_late
        assert min(values(swarm)) > LEARNED


@pytest.mark.acceptance
@virtual(1)
async def test_a_node_gets_missed_messages_from_others(seed):
    """For some rounds no frame of the first node reaches the second; its signed messages do, through others."""
    swarm = story(agreement(40), seed)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 5))
        one, other = swarm.nodes[0].peer_id, swarm.nodes[1].peer_id
        swarm.hub.rules.append(lambda src, dst, _now: Drop() if (src, dst) == (one, other) else None)
        await until(lambda: rounds_done(swarm, 8))
        swarm.hub.rules.clear()
        await swarm.finished()
        assert not any("anchor_parted" in events(v) for v in swarm.nodes.values())
        assert len({anchor_digest(v.vector) for v in swarm.nodes.values()}) == 1
        assert min(values(swarm)) > LEARNED


def tells(swarm, index, told):
    """Let a node send its message of a round only to the peers that `told` selects, and forward nobody's."""
    node = swarm.nodes[index].node

    def forge(message):
        return [NotNow(message.nonce, node.progress.round, "busy")] if isinstance(message, Pulled | Relayed) else [message]

    lie(node.network, "exchange", forge, lambda peer: not told(peer, node.progress.round))


def halves(peers, alternates):
    """Select half of the peers in a round: always the same, or drawn anew."""

    def told(peer, round):
        order = sorted(peers)
        if alternates:
            Random(round).shuffle(order)
        return peer in order[: len(order) // 2]

    return told


@pytest.mark.parametrize("alternates", [pytest.param(False, marks=pytest.mark.acceptance), True])
@virtual(1, more=(2, 3))
async def test_a_member_that_sends_to_half_causes_no_divergence(seed, alternates):
    """The others forward what it signed. It stops some rounds before the end: two rounds later outer parameters are bitwise equal."""
    swarm = story(agreement(40), seed)
    async with swarm.running(NODES):
        honest = [swarm.nodes[index] for index in range(NODES - 1)]
        await until(lambda: rounds_done(swarm, 5))
        mute = [False]
        told = halves([v.peer_id for v in honest], alternates)
        tells(swarm, NODES - 1, lambda peer, number: mute[0] or told(peer, number))
        await until(lambda: rounds_done(swarm, 36))
        mute[0] = True
        await swarm.finished()
        assert len({anchor_digest(v.vector) for v in honest}) == 1
        assert not any("anchor_parted" in events(v) for v in honest)
        assert all(not v.node.events.faults for v in honest)
        assert min(values(swarm)) > LEARNED


class Always(dict):
    """Outer parameters that are given whatever the round."""

    def clear(self):
        pass


def reports(swarm, index, outer):
    """Let a node claim, signed, that these are its outer parameters, and give them to whoever asks. It forwards nobody's messages."""
    v = swarm.nodes[index]
    v.engine.replica.given = Always({anchor_digest(outer): outer})

    def forge(message):
        if isinstance(message, Relayed):
            return [NotNow(message.nonce, v.node.progress.round, "busy")]
        if not isinstance(message, Pulled):
            return [message]
        payload = anchor_digest(outer) + message.payload[ANCHOR_BYTES:]
        signed = swarm.identity(index).sign(body(swarm.swarm, v.peer_id, message.incarnation, message.round, digest(payload)))
        return [msgspec.structs.replace(message, payload=payload, digest=digest(payload), signature=signed)]

    lie(v.node.network, "exchange", forge, lambda _peer: True)


def mixed(v):
    """Return what will be the digests of a node's outer parameters after each round from now on, by round."""
    engine, seen = v.node.running.engine, {}
    call = engine.call

    async def watched(request):
        reply = await call(request)
        if isinstance(request, calls.Mix):
            seen[request.round] = anchor_digest(v.vector)
        return reply

    engine.call = watched
    return seen


@pytest.mark.parametrize("fourth", ["crashes", "is silent", "is far", "is far for one"])
@virtual(1, more=(2, 4))
async def test_members_whose_outer_parameters_all_differ_have_equal_ones_four_rounds_later(seed, fourth):
    """Three of four hear nobody but the fourth for five rounds, so no two are alike. The fourth also reports some that nobody else has,
    crashes, or gives them to all, one or none; where one has another median, two are alike, and it takes a round more.
    """
    swarm = story(agreement(40), seed)
    async with swarm.running(4):
        honest = [swarm.nodes[index] for index in range(3)]
        ids = {v.peer_id for v in honest}
        await until(lambda: rounds_done(swarm, 8))
        far = torch.full_like(honest[0].vector, 1e3)
        reports(swarm, 3, far)
        serves = {"is far": ids, "is far for one": {honest[0].peer_id}}.get(fourth, set())
        lie(swarm.nodes[3].node.network, "state", lambda it: [it] * (not isinstance(it, StateOffer)), lambda peer: peer not in serves)
        apart = [True]
        for v in honest:
            lie(v.node.network, "exchange", lambda _it: [], lambda peer: apart[0] and peer in ids)
        await until(lambda: rounds_done(swarm, 13))
        apart[0], seen, first = False, [mixed(v) for v in honest], max(v.node.progress.current for v in honest) + 1
        if fourth == "crashes":
            await swarm.crash(3)
        await swarm.finished()
        different = {number: len({each[number] for each in seen}) for number in range(first, 40)}
        assert different[first] == 3
        later = [*different.values()][5 if fourth == "is far for one" else 4 :]
        assert {*later} == {1}, different
        assert all(float(v.vector.abs().max()) < 2.0 for v in honest)
        assert all(not v.node.events.faults for v in honest)
        assert min(v.node.progress.evaluated.value for v in honest) > LEARNED


def differing(v):
    """Return what will be the rounds after which a node's outer parameters of two rounds before differ from others'."""
    engine, seen = v.node.running.engine, []
    call = engine.call

    async def watched(request):
        reply = await call(request)
        if isinstance(request, calls.Mix) and reply.diverged is not None:
            seen.append(request.round)
        return reply

    engine.call = watched
    return seen


@virtual(1, more=(2, 3))
async def test_a_member_that_is_half_a_round_late_finds_whom_to_ask_for_their_outer_parameters(seed):
    """For 4 s its probes arrive and its messages do not, and the others go on. Its messages come late then, but say what it has."""
    swarm = story(agreement(40), seed)
    async with swarm.running(4):
        late = swarm.nodes[3]
        await until(lambda: rounds_done(swarm, 8))
        cut = [True]
        for v in swarm.nodes.values():
            lie(v.node.network, "exchange", lambda _it: [], lambda peer, me=v.peer_id: cut[0] and late.peer_id in (peer, me))
        await trio.sleep(4.0)
        ahead = max(v.node.progress.round for v in swarm.nodes.values())
        assert ahead > late.node.progress.round
        cut[0], seen = False, differing(late)
        await swarm.finished()
        assert ahead < max(seen, default=0) <= ahead + 5
        assert len({anchor_digest(v.vector) for v in swarm.nodes.values()}) == 1
