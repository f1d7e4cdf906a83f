"""Revocations of members: applied, forwarded, and compared with those of others.

Theory of operation. A new revocation is forwarded at once, also to the members that it removes. Their digest is compared with every
anti-entropy exchange, and the whole list is sent to a member with another digest, to one per `timeout_s`, to all in turn. A peer that
reports a revoked member, or one that uses another peer's invitation, is sent the reason for the rejection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.dissemination import fan_out
from starling.gossip.membership.events import Output, Send
from starling.gossip.membership.fair_queue import FairQueue
from starling.gossip.membership.swarm_view import SwarmView
from starling.gossip.wire import schema as wire

T = TypeVar("T")


@dataclass(slots=True)
class Revocations:
    """Reports of one node about the members that its gate rejects."""

    view: SwarmView
    _lists: FairQueue[tuple[bytes, bool]] = field(init=False)
    """Members with another digest of revocations, and whether they are asked for theirs."""

    def __post_init__(self) -> None:
        self._lists = FairQueue(self.view.timing.timeout_s)

    @property
    def deadline(self) -> float:
        """Local time at which `tick` must be called if no message arrives before."""
        return self._lists.deadline

    def receive(self, peer: str, message: wire.Control, now: float) -> list[Output]:
        """Process a message's revocations. Raises RemoteProtocolError: one is invalid."""
        if not isinstance(message, wire.Revoked):
            return []
        try:
            out = self.revoke(message.revocations)
        except ValueError as error:
            raise RemoteProtocolError(peer, str(error)) from error
        if message.reply and self.view.present(peer):
            self._lists.ask(peer, (message.known, not message.revocations))
        return out

    def tick(self, now: float) -> list[Output]:
        """Send all revocations to a member with another digest, if one's turn has come."""
        gate, turn = self.view.member_list.gate, self._lists.take(now)
        if turn is None:
            return []
        peer, (digest, asks) = turn
        if not self.view.present(peer) or digest == gate.digest:
            return []
        parts = _parts(gate.revoked, wire.MAX_REVOCATIONS)
        return [Send(peer, wire.Revoked(part, gate.digest, asks and last)) for part, last in parts]

    def revoke(self, revocations: Sequence[wire.Revocation]) -> list[Output]:
        """Apply new revocations and forward them, also to the members that they remove. Raises ValueError: one is invalid."""
        member_list = self.view.member_list
        new = member_list.gate.revoke(revocations)
        if not new:
            return []
        member_list.gate.changed()
        removed = member_list.purge()
        known = self.view.introductions.known(removed)
        others = self.view.others()
        notice = wire.Revoked(tuple(new), member_list.gate.digest)
        targets = [*self.view.sampler.sample(others, fan_out(len(others) + 1)), *(event.peer for event in removed)]
        return [*known, *(Send(peer, notice) for peer in targets)]

    def explain(self, records: Iterable[wire.Record], peer: str) -> list[Send]:
        """Return proofs for a peer that listed members our gate rejects: revocations, and the records that used an invitation first."""
        gate = self.view.member_list.gate
        answers = [gate.answer(it) for it in records if it.peer != self.view.own.peer] if gate.closed else []
        void = tuple(answer for answer in answers if isinstance(answer, wire.Revocation))[: wire.MAX_REVOCATIONS]
        first = tuple(answer for answer in answers if isinstance(answer, wire.Record))[: wire.MAX_RECORDS]
        out = [Send(peer, wire.Revoked(void, gate.digest))] if void else []
        return out + ([Send(peer, wire.Spread(first))] if first else [])

    def compare(self, peer: str) -> list[Send]:
        """Return our digest of revocations for a member, if there are any."""
        gate = self.view.member_list.gate
        return [Send(peer, wire.Revoked((), gate.digest, reply=True))] if gate.revoked else []

    def forget(self) -> None:
        """Forget peers that are no members."""
        self._lists.keep(self.view.member_list.members)


def _parts(items: Sequence[T], size: int) -> list[tuple[tuple[T, ...], bool]]:
    """Return at most `size` items each, and whether it is the last part; one empty part of no items."""
    starts = range(0, max(1, len(items)), size)
    return [(tuple(items[start : start + size]), start == starts[-1]) for start in starts]
