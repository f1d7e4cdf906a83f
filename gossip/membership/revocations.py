"""Messages that carry revocations and proofs of rejection to other members."""

from __future__ import annotations

from collections.abc import Iterable

from starling.gossip.membership.dissemination import MAX_FRAME_RECORDS
from starling.gossip.membership.events import Send
from starling.gossip.membership.gate import Gate
from starling.gossip.wire.schema import MAX_REVOCATIONS, Record, Revocation, Revoked, Spread


def explain(gate: Gate, records: Iterable[Record], peer: str) -> list[Send]:
    """Proofs for a peer that listed members which our gate rejects: revocations, and the records that used an invitation first.

    Args:
        gate: of this node.
        records: that `peer` sent.
        peer: the recipient.
    """
    if not gate.closed:
        return []
    answers = [gate.answer(record) for record in records]
    void = tuple(answer for answer in answers if isinstance(answer, Revocation))[:MAX_REVOCATIONS]
    first = tuple(answer for answer in answers if isinstance(answer, Record))[:MAX_FRAME_RECORDS]
    out = [Send(peer, Revoked(void, gate.digest))] if void else []
    return out + ([Send(peer, Spread(first))] if first else [])


def all_revoked(gate: Gate, peer: str, *, reply: bool) -> list[Send]:
    """All revocations, MAX_REVOCATIONS per frame; the last frame asks for the peer's own if `reply`."""
    starts = range(0, max(1, len(gate.revoked)), MAX_REVOCATIONS)
    frames = [tuple(gate.revoked[start : start + MAX_REVOCATIONS]) for start in starts]
    last = len(frames) - 1
    return [Send(peer, Revoked(frame, gate.digest, reply and i == last)) for i, frame in enumerate(frames)]
