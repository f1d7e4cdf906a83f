"""Verification of the records in received messages, before the detector reads them: within budgets, and all but a few in a thread.

Theory of operation. A signature costs 0.2 ms of processor, a credential up to sixteen more. Of a message only records are verified that
are newer than those stored and were not verified before; what was found of a record is remembered by its digest.

    a few, within what all may cost the event loop    at once, so that nothing waits in a quiet swarm
    more                                              in a thread, a message at a time, from sources in turn, and paced
    beyond the budget of their source                 left out of the message; anti-entropy brings them again

Introductions. A member may name peers that are not in the alive set here, but few that this node has not met, which is to receive a frame
of theirs: each record of these costs its source a token, and one comes back when they meet. So one liar cannot fill the list with peers
that do not exist, nor refute the suspicion of them. A peer greeted by its address, which the owner chose, may name any number.

A source is a public address prefix, or else a peer. A peer that is neither known nor greeted by its address speaks for itself only:
others' records are left out of its messages, and all such peers share one budget.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import trio

from starling.gossip.limits import Rates, TokenBucket, keep
from starling.gossip.membership.member_list import MemberList
from starling.gossip.wire import schema as wire
from starling.gossip.wire.schema import Record
from starling.node.admission.credential import Credential
from starling.node.admission.gate import Gatekeeper
from starling.node.daemon.context import Offload
from starling.node.net.round_robin import RoundRobin

# budgets in signatures (UNMET: in peers): per second, and burst
LOOP_PER_S, LOOP_AT_ONCE = 64.0, 256.0  # on the event loop, for all sources together
SOURCE_PER_S, SOURCE_AT_ONCE = 64.0, 1024.0  # for one known source
STRANGER_PER_S, STRANGER_AT_ONCE = 4.0, 32.0  # for one unknown source
STRANGERS_PER_S, STRANGERS_AT_ONCE = 64.0, 256.0  # for all unknown sources together
UNMET_PER_S, UNMET_AT_ONCE = 1 / 60, 16.0  # unmet peers that one source may report
THREAD_PER_S = 512.0  # in the thread: a tenth of a processor
FEW = 8  # signatures of one message that are verified on the event loop
CREDENTIAL_BYTES = 100  # least bytes of a credential per signature
MAX_WAITING = 32  # queued messages of one source
MAX_WAITING_SIGNATURES = 8192  # of all
MAX_SOURCES = 1024
MAX_KEPT = 8192  # digests of records


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message, and the records in it that must be verified before it is read."""

    peer: str
    message: wire.Control
    records: tuple[Record, ...]


@dataclass(slots=True)
class RecordVerifier:
    """Decides which part of a message may be processed now, and processes the rest when it is verified; `signed` has no side effects."""

    members: MemberList
    gate: Gatekeeper
    signed: Callable[[Record], bool]  # returns whether a record is signed by its peer, for this swarm
    offload: Offload
    read: Callable[[str, wire.Control], object]  # receives a peer and its message, verified in the thread
    greeted: set[str] = field(default_factory=set)  # unknown peers whose reports about others are accepted
    _found: dict[bytes, bool] = field(default_factory=dict)
    _loop: TokenBucket = field(default_factory=lambda: TokenBucket(LOOP_PER_S, LOOP_AT_ONCE))
    _strangers: TokenBucket = field(default_factory=lambda: TokenBucket(STRANGERS_PER_S, STRANGERS_AT_ONCE))
    _tellers: Rates[str] = field(default_factory=lambda: Rates(UNMET_PER_S, UNMET_AT_ONCE, MAX_SOURCES))
    _unmet: dict[str, TokenBucket] = field(default_factory=dict)  # budget of the source that reported a peer
    _sources: dict[tuple[str, bool], TokenBucket] = field(default_factory=dict)
    _waiting: RoundRobin[_Waiting] = field(default_factory=lambda: RoundRobin(MAX_WAITING, MAX_WAITING_SIGNATURES))
    _arrived: trio.Event = field(default_factory=trio.Event)

    def is_signed(self, record: Record) -> bool:
        """Return whether a record is `signed`, from the cache if it was verified before."""
        found = self._found.get(_digest(record))
        return self._note(record, self.signed(record)) if found is None else found

    def receive(self, source: str, peer: str, message: wire.Control, now: float) -> wire.Control | None:
        """Return the part of a message that may be processed now, of `peer` at network `source`; None: nothing now, perhaps later."""
        if (teller := self._unmet.pop(peer, None)) is not None:
            teller.give_back(1.0)
        records = records_of(message)
        if not records:
            return message
        known = peer in self.members.members or peer in self.greeted
        several = isinstance(message, wire.Spread | wire.Sync)
        heard = self._heard(source, peer, records, known, now) if several else records
        fresh = {digest: record for record in heard if (digest := self._news(record))}
        unread = {digest for digest, record in fresh.items() if not self._afford(source, known, _cost(record), now)}
        legible = tuple(record for record in heard if _digest(record) not in unread) if unread else heard
        if len(legible) < len(records):
            if not several:
                return None
            message = msgspec.structs.replace(message, records=legible)
        afforded = tuple(record for digest, record in fresh.items() if digest not in unread)
        cost = sum(map(_cost, afforded))
        if cost <= FEW and self._loop.take(cost, now):
            return message
        self._waiting.put(source, _Waiting(peer, message, afforded), cost)
        self._arrived.set()
        return None

    def _heard(self, source: str, peer: str, records: Iterable[Record], known: bool, now: float) -> tuple[Record, ...]:
        """Return the records that a peer may report: its own, and as many of others as it may name."""
        if peer in self.greeted:
            return tuple(records)
        told = [record for record in records if known or record.peer == peer]
        return tuple(record for record in told if record.peer == peer or self._may_name(source, record, now))

    def _news(self, record: Record) -> bytes | None:
        """Return the digest of a record that would be stored and was not verified before; None for any other."""
        if not self.members.is_news(record):
            return None
        digest = _digest(record)
        return None if digest in self._found else digest

    async def serve(self) -> None:
        """Verify waiting records until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            while self._waiting:
                each = self._waiting.take()
                records = tuple(record for record in each.records if _digest(record) not in self._found)
                for record, signed, credential in await self.offload(partial(self._verify, records)):
                    self._note(record, signed)
                    self.gate.learn(record, credential)
                self.read(each.peer, each.message)
                await trio.sleep(sum(map(_cost, records)) / THREAD_PER_S)

    def _verify(self, records: Iterable[Record]) -> list[tuple[Record, bool, Credential | str]]:
        return [(record, self.signed(record), self.gate.examine(record)) for record in records]

    def _may_name(self, source: str, record: Record, now: float) -> bool:
        member, unmet = self.members.members.get(record.peer), record.peer in self._unmet
        if not self.members.is_news(record) or (member is not None and member.present and not unmet):
            return True
        if record.status == "left":
            return member is not None
        if member is not None or not unmet:  # otherwise it is being verified
            bucket = self._tellers.of(source)
            if not bucket.take(1.0, now):
                return False
            keep(self._unmet, record.peer, bucket, MAX_KEPT)
        return True

    def _afford(self, source: str, known: bool, cost: int, now: float) -> bool:
        rate = (SOURCE_PER_S, SOURCE_AT_ONCE) if known else (STRANGER_PER_S, STRANGER_AT_ONCE)
        bucket = self._sources.pop((source, known), None) or TokenBucket(*rate)
        keep(self._sources, (source, known), bucket, MAX_SOURCES)
        return bucket.take(cost, now) and (known or self._strangers.take(cost, now))

    def _note(self, record: Record, signed: bool) -> bool:
        keep(self._found, _digest(record), signed, MAX_KEPT)
        return signed


def records_of(message: wire.Control) -> tuple[Record, ...]:
    """Return the records in a message that are stored if they are new."""
    match message:
        case wire.Hello(record) | wire.Farewell(record):
            return (record,)
        case wire.Spread(records) | wire.Sync(records):
            return records
        case _:
            return ()


def _cost(record: Record) -> int:
    """Return the largest number of signatures to verify."""
    return 1 + len(record.credential) // CREDENTIAL_BYTES


def _digest(record: Record) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(record), digest_size=16).digest()
