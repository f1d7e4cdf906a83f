"""Anti-entropy of one node: comparisons of tables (`starling.gossip.membership.table`), and the records sent for them, within allowances.

Each peer may have us send so many records at once and so many a second in the long run, and comparisons count as the records they are as
large as; all that are no members share one allowance. What is left out is found again by the next comparison. Only records that may be
passed on are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from starling.gossip.limits import Rates, TokenBucket
from starling.gossip.membership.events import Send
from starling.gossip.membership.member_list import MemberList, order_of
from starling.gossip.membership.sampler import Sampler
from starling.gossip.wire import schema as wire

AT_ONCE, PER_S = 1024.0, 16.0  # number of records that one peer can make us send
MAX_PEERS = 1024  # allowances remembered
_STRANGERS = ""
_PARTS = 16.0  # entries or branches that are as large as a record


@dataclass(slots=True)
class AntiEntropy:
    """The messages by which a node's table and another's become equal."""

    member_list: MemberList
    sampler: Sampler
    tellable: Callable[[wire.Record], bool]  # whether a record may be forwarded
    _allowances: Rates[str] = field(default_factory=lambda: Rates(PER_S, AT_ONCE, MAX_PEERS))

    def open(self, peer: str, *, differs: bool) -> Send:
        """Begin to compare, at our own pace; `differs`: it is known already that the tables do."""
        return Send(peer, self.member_list.table.first_message(differs=differs))

    def answer(self, peer: str, message: wire.Compare, now: float) -> list[Send]:
        """Continue a comparison: the branches below, the records that the peer lacks, and those that we lack."""
        allowance = self._allowance(peer, now)
        if not allowance.take(1.0, now):
            return []
        found = self.member_list.table.answer(message, self._start())
        if self.member_list.full:
            found = replace(found, wanted=())
        out: list[Send] = []
        parts = len(found.compare.branches) + sum(1 + len(leaf.entries) // 16 for leaf in found.compare.leaves) + len(found.wanted)
        if parts and allowance.take(parts / _PARTS, now):
            out += [Send(peer, found.compare)] if found.compare != wire.Compare() else []
            out += [Send(peer, wire.Want(found.wanted))] if found.wanted else []
        return out + self.tell(peer, [self.member_list.members[it].record for it in found.missing], now)

    def supply(self, peer: str, wanted: Iterable[bytes], now: float) -> list[Send]:
        """Return records that a peer requests by their keys."""
        found = map(self.member_list.table.peer_of, wanted)
        return self.tell(peer, [self.member_list.members[it].record for it in found if it is not None], now)

    def correct(self, peer: str, records: Iterable[wire.Record], now: float) -> list[Send]:
        """Return our newer records of members of which a peer sent older ones, including departed members."""
        pairs = [(self.member_list.members.get(record.peer), record) for record in records]
        known = [(ours.record, theirs) for ours, theirs in pairs if ours is not None and ours.status != "dead"]
        return self.tell(peer, [ours for ours, theirs in known if order_of(ours) > order_of(theirs)], now)

    def tell(self, peer: str, records: Sequence[wire.Record], now: float) -> list[Send]:
        """Return as many of these records as the peer's allowance permits, from a random start."""
        allowance, start = self._allowance(peer, now), self._start() % max(1, len(records))
        turned = (record for record in (*records[start:], *records[:start]) if self.tellable(record))
        told: list[wire.Record] = []
        for record in turned:
            if not allowance.take(1.0, now):
                break
            told.append(record)
        parts = range(0, len(told), wire.MAX_RECORDS)
        return [Send(peer, wire.Sync(tuple(told[at : at + wire.MAX_RECORDS]))) for at in parts]

    def _allowance(self, peer: str, now: float) -> TokenBucket:
        return self._allowances.of(peer if peer in self.member_list.members else _STRANGERS)

    def _start(self) -> int:
        return int(self.sampler.draw() * 2**32)
