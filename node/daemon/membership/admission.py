"""Admission in a running node: make and renew its own credential, and evaluate others' proofs of work.

Nothing here decides who is admitted; `node.admission.gate` does. Evaluations of argon2id take milliseconds each, so they run in a thread,
one after the other, and in batches short enough not to delay a stop. Each source of tickets, an address prefix or else a peer, has a bucket
of evaluations; good tickets are refunded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from textwrap import shorten

import trio

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.limits import Rates, TokenBucket
from starling.gossip.membership.member_list import Member
from starling.gossip.seeds import derive
from starling.gossip.wire.schema import Record, Revocation
from starling.node.admission import chain as chains
from starling.node.admission import credential as credentials
from starling.node.admission import revocations
from starling.node.admission.chain import Chain
from starling.node.admission.credential import Credential, Ticket
from starling.node.admission.gate import GOOD, Gatekeeper, puzzle_of
from starling.node.admission.work import search
from starling.node.daemon.context import NodeContext, Offload, in_thread
from starling.node.daemon.store import NodeStore

BATCH_S = 0.25  # seconds that a batch of tries should take
PROGRESS_S = 1.0
CLOCK_S = 60.0  # seconds; the longest sleep before the system clock is read again, as it may be set meanwhile
SPREAD = 8  # members begin to renew at random times within this part of an epoch, so that tickets do not come all at once
WASTED_PER_S, WASTED_AT_ONCE = 1.0, 64.0
MAX_WAITING = 512
MAX_SOURCES = 1024
LIST_WIDTH = 120  # characters of a list of invitations in a message


class Admission:
    """A node's own credential, and the gate for others' credentials. `offload` runs proof-of-work evaluations.

    Raises ConfigError: no member would admit this node; the message says what helps.
    """

    def __init__(self, context: NodeContext, store: NodeStore, chain: Chain = (), offload: Offload = in_thread) -> None:
        manifest, operator = context.manifest, context.config.operator
        if not operator.isprintable():
            advice = "change it in node.toml, `starling config show node` explains it"
            raise ConfigError(f"operator: must be printable, got {operator!r}; {advice}")
        self.gate = Gatekeeper(manifest, context.swarm, context.me, context.unix_time)
        self._swarm = context.swarm
        self._identity = context.identity
        self._unix_s = context.unix_time
        self._report = context.report
        self._store = store
        self.offload = offload
        self._puzzle = puzzle_of(manifest, context.swarm)
        self._shown = Credential(operator, None, chain if manifest.admission.kind == "invite" else ())
        self._waiting, self._examined = trio.open_memory_channel[tuple[Record, str, TokenBucket]](MAX_WAITING)
        self._under_way: set[tuple[str, bytes]] = set()
        self._sources: Rates[str] = Rates(WASTED_PER_S, WASTED_AT_ONCE, MAX_SOURCES)
        for revocation in store.known_revoked():
            with suppress(ValueError):  # a damaged file, or another swarm's
                self.gate.revoke([revocation])
        self._stored = self.gate.digest
        self._reported = 0
        """Invitations that were reported as used twice."""
        standing = self.gate.standing(self._record())
        if self._puzzle is None and standing != GOOD:
            raise ConfigError(f"admission: {self._why(standing.reason)}")

    @property
    def credential(self) -> bytes:
        """Return our credential in the form that our record carries."""
        return credentials.encode(self._shown)

    def check(self, own: Record) -> str:
        """Report invitations that are used twice, and store new revocations.

        -> why other members reject our record, in one line; "" if they accept it, or will after a new proof of work
        """
        for use in list(self.gate.overused.values())[self._reported :]:
            self._reported += 1
            text = f"{use.first.peer} and {use.second.peer} use the same invitation of {use.inviter}, which admits neither from now on"
            self._report.event("invitation_overused", text, level="warning", peer=use.inviter, number=use.number)
            if use.inviter not in {own.peer, self.gate.manifest.founder}:
                self._report.fault(use.inviter, "invitation_signed_twice" if use.signed_twice else "invitation_overused")
        if self.gate.digest != self._stored:
            self._stored = self.gate.digest
            self._store.keep_revoked(self.gate.revoked)
        if self.gate.is_shared(own):
            return "another node uses the same invitation, which admits neither; ask for a new one, then `starling join INVITE`"
        standing = self.gate.standing(own)
        return "" if standing == GOOD or self._puzzle is not None else self._why(standing.reason)

    async def obtain(self) -> None:
        """Find a proof of work for our record, if the swarm requires one and that of an earlier run has expired."""
        puzzle, known = self._puzzle, self._store.known_ticket()
        if puzzle is None:
            return
        if known is not None and puzzle.is_current(known, self._unix_s()):
            good = await self.offload(partial(puzzle.is_solved, self._identity.peer_id, known))
            if good:
                self._show(known)
                return
        self._show(await self._work(puzzle.epoch(self._unix_s())))

    async def renew(self, present: Callable[[bytes], object]) -> None:
        """Find a proof of work for each new epoch in time, until cancelled; `present` is called with each new credential."""
        if self._puzzle is None:
            return
        share = derive(0, "renew", self._identity.peer_id) / 2**63 / SPREAD
        while True:
            ticket = self._shown.ticket
            assert ticket is not None
            due = self._puzzle.begins_s(ticket.epoch + 1) + share * self._puzzle.epoch_s
            wait = due - self._unix_s()
            if wait > 0:
                await trio.sleep(min(wait, CLOCK_S))
                continue
            self._show(await self._work(max(self._puzzle.epoch(self._unix_s()), ticket.epoch + 1)))
            present(self.credential)

    def _show(self, ticket: Ticket) -> None:
        self._shown = Credential(self._shown.operator, ticket)
        self._store.keep_ticket(ticket)
        self.gate.prove(self._record(), good=True)

    def _record(self) -> Record:
        """Return our record, with the fields that the gate reads."""
        return Record(self._identity.peer_id, self._swarm, 0, 0, "alive", (), b"", self.credential)

    async def _work(self, epoch: int) -> Ticket:
        assert self._puzzle is not None
        began, report_after, tries, batch = trio.current_time(), PROGRESS_S, 0, 1
        while True:
            nonces = range(tries, tries + batch)
            at = trio.current_time()
            ticket = await self.offload(partial(search, self._puzzle, self._identity.peer_id, epoch, nonces))
            if ticket is not None:
                return ticket
            tries += batch
            now = trio.current_time()
            batch = max(1, min(2 * batch, int(batch * BATCH_S / max(now - at, 1e-6))))
            if now - began >= report_after:
                report_after *= 2
                text = f"proof of work: {tries:,} tries in {now - began:.0f} s, {2**self._puzzle.bits:,} on average"
                self._report.event("working", text, tries=tries, epoch=epoch)

    def _why(self, reason: str) -> str:
        me = self._identity.peer_id
        ask = "ask a member for the line that `starling invite` prints, then `starling join INVITE`"
        chain = self._shown.chain
        match reason:
            case "not_listed":
                return f"{me} is not among the members that this swarm lists; only its creator can list it, in another: `starling create`"
            case "credential_missing":
                return f"this swarm takes invited members only, and this node has no invitation; {ask}"
            case "chain_of_another":
                return f"the invitation is for {chain[-1].holder}, this node is {me}; {ask}"
            case "invitation_revoked":
                return f"this node's invitation was revoked; {ask}"
            case "invitation_expired":
                ended = datetime.fromtimestamp(chains.not_after_ms(chain) / 1000, UTC)
                return f"this node's invitation ended on {ended:%Y-%m-%d at %H:%M} UTC; {ask}"
            case _:
                return f"the invitation is none of this swarm's ({reason}); {ask}"

    def queue(self, source: str, sender: str, now: float) -> None:
        """Queue the records of the sender's last message whose proof of work must be evaluated; `source`: address prefix or peer."""
        records, self.gate.unproven = self.gate.unproven, []
        for record in records:
            key, bucket = (record.peer, record.credential), self._sources.of(source)
            if key in self._under_way or not bucket.take(1.0, now):
                continue
            try:
                self._waiting.send_nowait((record, sender, bucket))
            except trio.WouldBlock:
                bucket.give_back(1.0)
                continue
            self._under_way.add(key)

    async def examine(self, welcome: Callable[[Record, str], object]) -> None:
        """Evaluate queued records until cancelled; `welcome` is called with each record whose work is good, and its sender."""
        async for record, sender, bucket in self._examined:
            try:
                if self.gate.standing(record).state == "unproven":
                    self.gate.prove(record, good=await self.offload(partial(self._is_solved, record)))
            finally:
                self._under_way.discard((record.peer, record.credential))
            standing = self.gate.standing(record)
            if standing.state == "false":
                self._report.fault(sender, standing.reason)
                continue
            bucket.give_back(1.0)
            if standing == GOOD:
                welcome(record, sender)

    def _is_solved(self, record: Record) -> bool:
        ticket = self.gate.credential(record).ticket
        return self._puzzle is not None and ticket is not None and self._puzzle.is_solved(record.peer, ticket)

    def revocation(self, chain: Chain) -> Revocation:
        """Return a signed revocation of the last invitation of a chain. Raises GossipError: this node may not revoke it."""
        try:
            return revocations.revoke(self._identity, chain, self.gate.revocations.terms)
        except ValueError as error:
            text = f"revoke: only the creator and those above a member can revoke its invitation ({error}); see `starling peers`"
            raise GossipError(text) from error

    def chain_of(self, holder: str, member: Member | None) -> Chain:
        """Return the chain of a member's invitation, or of one that we gave, by the number that `holder` names.

        Raises ConfigError: there is no such member or valid invitation; GossipError: the swarm has no invitations.
        """
        if self.gate.manifest.admission.kind != "invite":
            raise GossipError("revoke: this swarm has no invitations; keep a peer out with `starling ban PEER`")
        if member is not None:
            return self.gate.credential(member.record).chain
        members = "`starling peers` lists the members"
        if not holder.isdecimal():
            raise ConfigError(f"revoke: {holder} is no member known to this node; {members}")
        now_ms = self._unix_s() * 1000
        valid = {str(number): chain for number, chain in self._store.issued().items() if chains.not_after_ms(chain) > now_ms}
        if holder not in valid:
            shown = shorten(", ".join(valid) or "none", LIST_WIDTH, placeholder=" …")
            raise ConfigError(f"revoke: this node has given no invitation {holder[:12]} that is valid; valid are: {shown}; {members}")
        return valid[holder]
