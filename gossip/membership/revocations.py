"""How a member tells others who may not be one, where anything is asked of members: `starling.gossip.membership.gate` knows who and why."""

from __future__ import annotations

from collections.abc import Iterable

from starling.gossip.membership.dissemination import MAX_FRAME_RECORDS
from starling.gossip.membership.events import Send
from starling.gossip.membership.gate import Gate
from starling.gossip.wire.schema import MAX_REVOCATIONS, Record, Revocation, Revoked, Spread


def explain(gate: Gate, records: Iterable[Record], peer: str) -> list[Send]:
    """Who believes in a peer that is revoked, or that came second with one invitation, hears why we do not.

    Args:
        gate: ours.
        records: what `peer` told of others.
        peer: who did.
    """
    if not gate.closed:
        return []
    answers = [gate.answer(record) for record in records]
    void = tuple(answer for answer in answers if isinstance(answer, Revocation))[:MAX_REVOCATIONS]
    first = tuple(answer for answer in answers if isinstance(answer, Record))[:MAX_FRAME_RECORDS]
    out = [Send(peer, Revoked(void, gate.digest))] if void else []
    return out + ([Send(peer, Spread(first))] if first else [])


def all_revoked(gate: Gate, peer: str, *, reply: bool) -> list[Send]:
    """All revocations for a peer, in several frames if many; the last asks for theirs if `reply`."""
    starts = range(0, max(1, len(gate.revoked)), MAX_REVOCATIONS)
    frames = [tuple(gate.revoked[start : start + MAX_REVOCATIONS]) for start in starts]
    last = len(frames) - 1
    return [Send(peer, Revoked(frame, gate.digest, reply and i == last)) for i, frame in enumerate(frames)]
