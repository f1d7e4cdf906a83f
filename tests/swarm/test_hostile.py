"""One liar in a swarm of whole nodes: it joins and takes part honestly for a while, then sends forged frames.

The liar is an ordinary node whose outgoing frames are rewritten, so its handshakes are valid. Honest nodes must finish as if it were not
there, count its faults by reason, refuse it and delete its flow.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from statistics import mean

import msgspec
import pytest

from starling.gossip.compress.header import HEADER
from starling.gossip.wire.schema import MAX_FRAME_BYTES, Ack, Busy, Message, Request, Response, Solicit
from starling.node.config.schema import MixSection
from tests.harness.stories import replayable, virtual
from tests.harness.swarms import Forge, assert_flows_cancel, digits, drain, events, flows_with, lie, rounds_done, story, until, values

HONEST = 5
ROUNDS = 24
POINTS = 0.02
LONGEST = bytes(MAX_FRAME_BYTES["exchange"])
NUMBERLESS = ("not_finite", "bad_scale", "bad_code")


def replaced(kind: type[Message] | tuple[type[Message], ...], **changes: object) -> Forge:
    """Replace some fields of one kind of message."""
    return lambda message: [msgspec.structs.replace(message, **changes) if isinstance(message, kind) else message]


def payload(kind: type[Request | Response], forged: Callable[[bytes], bytes]) -> Forge:
    """Return the vector in a message."""

    def forge(message: Message) -> list[Message | bytes]:
        return [replaced(kind, payload=forged(message.payload))(message)[0] if isinstance(message, kind) else message]

    return forge


def filled(kind: type[Request | Response], pattern: bytes) -> Forge:
    """Return the value with all bytes equal."""
    size = HEADER.size
    return payload(kind, lambda honest: honest[:size] + (pattern * len(honest))[: len(honest) - size])


def of_dim(dim: int) -> Callable[[bytes], bytes]:
    def forged(honest: bytes) -> bytes:
        version, kind, code, _ = HEADER.unpack_from(honest)
        return HEADER.pack(version, kind, code, dim) + honest[HEADER.size :]

    return forged


def replay() -> Forge:
    """Send every request, followed by the last sixteen of that edge."""
    sent: defaultdict[int, list[Message]] = defaultdict(list)

    def forge(message: Message) -> list[Message | bytes]:
        if isinstance(message, Request):
            sent[message.inc].append(message)
            return [message, *sent[message.inc][-16:]]
        return [message]

    return forge


def and_unasked(message: Message) -> list[Message | bytes]:
    """Send answers that nobody requested."""
    return [message, Response(message.inc, message.seq + 1000, b"")] if isinstance(message, Response) else [message]


def at_the_end_of_time(message: Message) -> list[Message | bytes]:
    return replaced((Request, Solicit, Busy), round=2**62)(message)


LOWEST, HIGHEST = min, max
"""Of all peer ids: the liar begins every exchange it takes part in, or answers."""

ATTACKS = {
    "garbage": (LOWEST, lambda _: [b"\xc1" * 100], ("frame_not_msgpack",)),
    "the longest frame there may be": (LOWEST, lambda _: [LONGEST], ("frame_not_msgpack",)),
    "no message": (HIGHEST, lambda _: [b"\x93\xa3req\x01\x02"], ("frame_not_a_message",)),
    "values that are no numbers": (LOWEST, filled(Request, b"\x00\x7e"), NUMBERLESS),
    "infinite values": (LOWEST, filled(Request, b"\x00\x7c"), NUMBERLESS),
    "differences that are no numbers": (HIGHEST, filled(Response, b"\xff"), NUMBERLESS),
    "a vector of another dimension": (LOWEST, payload(Request, of_dim(2**40)), ("wrong_dim",)),
    "a difference of another dimension": (HIGHEST, payload(Response, of_dim(7)), ("wrong_dim",)),
    "a thousand times too long a vector": (LOWEST, payload(Request, lambda p: p * 1000), ("bad_length",)),
    "an empty vector": (HIGHEST, payload(Response, lambda _: b""), ("bad_length",)),
    "too much gain": (LOWEST, replaced(Request, gain=1e6), ("gain_out_of_bounds",)),
    "no weight": (LOWEST, replaced(Request, theta=0.0), ("request_malformed",)),
    "all the weight": (LOWEST, replaced(Request, theta=1.0), ()),
    "proof of what never was": (LOWEST, replaced(Ack, seq=2**40), ("proof_of_nothing",)),
    "old requests": (LOWEST, replay(), ()),
    "answers nobody asked for": (HIGHEST, and_unasked, ("answer_unasked",)),
    "the end of time, asking": (LOWEST, at_the_end_of_time, ()),
    "the end of time, answering": (HIGHEST, at_the_end_of_time, ()),
    "an incarnation above all": (LOWEST, replaced(Message, inc=2**62), ("incarnation_too_large",)),
}
"""name -> (where the liar stands, what it does, the reason for which it is blamed; none if it is only ignored)"""


def outsider(swarm, place) -> int:
    """Return the index whose peer id is the lowest or highest."""
    ids = {swarm.identity(index).peer_id: index for index in range(HONEST)}
    candidates = {swarm.identity(index).peer_id: index for index in range(HONEST, 100)}
    chosen = place(candidates)
    assert place([chosen, *ids]) == chosen
    return candidates[chosen]


def agreement(quorum):
    agreed = digits(HONEST + 1, rounds=ROUNDS, quorum=quorum)
    return msgspec.structs.replace(agreed, mix=MixSection(kappa=0.1))


@cache
def undisturbed() -> float:
    """Return the mean accuracy of the honest nodes without the liar."""

    async def among_themselves():
        swarm = story(agreement(HONEST), 1)
        async with swarm.running(HONEST):
            await swarm.finished()
            return mean(values(swarm))

    return replayable(among_themselves, 1)


async def joined(swarm, index: int):
    """Start the liar; from then on `swarm` has only the honest nodes."""
    liar = await swarm.start(index)
    del swarm.nodes[index]
    return liar


async def assert_nothing_remains(swarm, liar: str) -> None:
    """Assert that the honest nodes' corrections sum to zero without the liar's flows."""
    await drain(swarm)
    for one in swarm.nodes.values():
        await one.node.running.exchange.revoke(liar)
    assert_flows_cancel(swarm)


@virtual(1, before=undisturbed)
@pytest.mark.parametrize(
    "attack", [name if number % 9 == 0 else pytest.param(name, marks=pytest.mark.acceptance) for number, name in enumerate(ATTACKS)]
)  # a ninth of them here; the edge machine's own tests have each of them
async def test_a_liar_is_refused_without_effect_on_honest_nodes(attack):
    place, forge, reasons = ATTACKS[attack]
    swarm = story(agreement(HONEST + 1), 1)
    async with swarm.running(HONEST):
        liar = await joined(swarm, outsider(swarm, place))
        lie(liar.node.network, "exchange", forge, lambda _peer: rounds_done(swarm, 8))
        await until(lambda: rounds_done(swarm, 7))
        assert flows_with(swarm, liar.peer_id)
        await swarm.finished()
        assert mean(values(swarm)) >= undisturbed() - POINTS
        for virtual in swarm.nodes.values():
            node, counts = virtual.node, virtual.node.events.faults.get(liar.peer_id, {})
            assert node.progress.round == ROUNDS
            assert node.progress.figures.local_steps >= 0.8 * ROUNDS * 10  # nobody skipped rounds because of it
            assert node.events.faults.keys() <= {liar.peer_id}  # the honest blame no one else
            assert set(counts) <= set(reasons)
            shut_out = bool({"peer_quarantine", "peer_ban"} & set(events(virtual)))
            assert shut_out == (sum(counts.values()) >= 2)
            assert shut_out == node.network.refuses(liar.peer_id)
        blamed = any(liar.peer_id in virtual.node.events.faults for virtual in swarm.nodes.values())
        assert blamed == bool(reasons)
        shut_out_by = [i for i, v in swarm.nodes.items() if v.node.network.refuses(liar.peer_id)]
        assert not set(shut_out_by) & set(flows_with(swarm, liar.peer_id))
        await assert_nothing_remains(swarm, liar.peer_id)


@virtual(1, before=undisturbed)
async def test_a_liar_that_attacks_one_node_does_not_separate_it_from_the_others():
    swarm = story(agreement(HONEST + 1), 1)
    async with swarm.running(HONEST):
        liar, victim = await joined(swarm, outsider(swarm, LOWEST)), swarm.nodes[2]
        aimed = replaced(Request, gain=1e6)
        lie(liar.node.network, "exchange", aimed, lambda peer: peer == victim.peer_id and rounds_done(swarm, 8))
        await until(lambda: victim.node.network.refuses(liar.peer_id))
        committed, began = victim.node.running.exchange.stats.committed, victim.node.progress.round
        await swarm.finished()
        assert len({virtual.node.running.membership.view for virtual in swarm.nodes.values()}) == 1
        assert victim.node.running.exchange.stats.committed - committed > (ROUNDS - began) / 3
        assert victim.node.progress.evaluated.value >= undisturbed() - 2 * POINTS
        assert [i for i, v in swarm.nodes.items() if v.node.network.refuses(liar.peer_id)] == [2]
        await assert_nothing_remains(swarm, liar.peer_id)
