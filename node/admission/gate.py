"""The admission gate: decides which records may be members of one swarm; satisfies `starling.gossip.membership.gate.Gate`.

Theory of operation. A record that comes here is signed by its peer. Its credential, if it is one at all, is in one of these states:

    false      no honest member can have sent it: malformed, missing, wrongly signed, work found wrong
    unproven   a proof of work that has not been evaluated yet: not admitted, but added to `unproven` to be evaluated
    lapsed     it was good once or may be elsewhere: expired, revoked, of another epoch, or second with an invitation for one
    good       admitted

Between peers that use one invitation the lower peer id is kept, not the one seen first: first differs from node to node, and members must
agree on the list. That both exist is kept as evidence against the inviter. The node itself is always in its own list; `standing` says
what others think of it.

The time is an argument of the constructor: a function, so that the core which asks need not know that credentials end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from starling.gossip.wire.schema import Record, Revocation
from starling.node.admission import chain as chains
from starling.node.admission.chain import Slot, Terms
from starling.node.admission.credential import NOTHING, Credential, Ticket, decode
from starling.node.admission.revocations import Revocations
from starling.node.admission.work import Puzzle
from starling.node.config.schema import Manifest

MAX_KEPT = 8192  # of anything remembered per peer; twice the members there can be
MAX_UNPROVEN = 512
MAX_OVERUSED = 256

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

State = Literal["good", "unproven", "lapsed", "false"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a credential is worth now.

    Args:
        state: see above.
        reason: in snake_case, why it is not good; "" if it is.
    """

    state: State
    reason: str = ""


GOOD = Standing("good")


@dataclass(frozen=True, slots=True)
class Overuse:
    """One invitation in two hands: both records are signed by their peers and carry it.

    Args:
        inviter: the member that answers for it.
        number: which of its invitations.
        kept: the record that counts.
        other: the one that does not.
        signed_twice: the inviter signed one of it for each of them. If not, one line was used by two: the inviter's, or stolen on its way.
    """

    inviter: str
    number: int
    kept: Record
    other: Record
    signed_twice: bool


@dataclass(slots=True)
class Gatekeeper:
    """The gate of one node.

    Args:
        manifest: of the swarm, for its admission rules and founder.
        swarm: its id.
        me: own peer id.
        unix_s: the time.
    """

    manifest: Manifest
    swarm: str
    me: str
    unix_s: Callable[[], float]
    revocations: Revocations = field(init=False)
    unproven: list[Record] = field(default_factory=list)
    """Records to be evaluated; the evaluator removes them and calls `prove`."""
    overused: dict[Slot, Overuse] = field(default_factory=dict)
    _puzzle: Puzzle | None = field(init=False)
    _parsed: dict[tuple[str, bytes], Credential] = field(default_factory=dict)
    _proven: dict[tuple[str, Ticket], bool] = field(default_factory=dict)
    _first: dict[Slot, Record] = field(default_factory=dict)
    _changed: bool = False

    def __post_init__(self) -> None:
        admission = self.manifest.admission
        terms = Terms(self.swarm, self.manifest.founder, admission.depth, admission.quota)
        self.revocations = Revocations(terms)
        self._puzzle = puzzle_of(self.manifest, self.swarm)

    # --- what the membership core asks ----------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether anything is asked of members."""
        return self.manifest.admission.kind != "open" or self._puzzle is not None

    @property
    def revoked(self) -> tuple[Revocation, ...]:
        """All revocations known."""
        return self.revocations.listed

    @property
    def digest(self) -> bytes:
        """Of `revoked`."""
        return self.revocations.digest

    def fault(self, record: Record) -> str:
        """Why no honest member can have sent this record, in snake_case; "" if one can."""
        standing = self.standing(record)
        return standing.reason if standing.state == "false" else ""

    def admits(self, record: Record) -> bool:
        """Whether the peer may be a member now."""
        if record.peer == self.me:
            return True
        standing = self.standing(record)
        if standing.state == "unproven" and len(self.unproven) < MAX_UNPROVEN:
            self.unproven.append(record)
        return standing == GOOD and self._claims(record)

    def answer(self, record: Record) -> Revocation | Record | None:
        """The proof against a record that is not admitted: its revocation, or the record that has precedence."""
        standing = self.standing(record)
        if standing.reason == "invitation_revoked":
            return self.revocations.voids(self.credential(record).chain)
        return self._before(record) if standing == GOOD else None

    def revoke(self, revocations: Sequence[Revocation]) -> list[Revocation]:
        """Take in revocations -> those that are new.

        Raises:
            ValueError: one is none, or this swarm has no invitations; then nothing was taken in.
        """
        if revocations and self.manifest.admission.kind != "invite":
            raise ValueError("nothing_to_revoke")
        new = self.revocations.add(revocations, self._now_ms())
        self._changed = self._changed or bool(new)
        return new

    def changed(self) -> bool:
        """Whether an answer of `admits` may have changed since this was asked last, by anything but time."""
        changed, self._changed = self._changed, False
        return changed

    # --- what the shell asks ----------------------------------------------------------------------------------

    def prove(self, record: Record, *, good: bool) -> None:
        """The work in a record was evaluated."""
        ticket = self.credential(record).ticket
        if ticket is not None:
            _keep(self._proven, (record.peer, ticket), good)

    def standing(self, record: Record) -> Standing:
        """Standing of a record's credential now, regardless of rivals for the same invitation."""
        credential = self._parse(record)
        if isinstance(credential, str):
            return Standing("false", credential)
        kind = self.manifest.admission.kind
        if kind == "allow":
            listed = record.peer == self.manifest.founder or record.peer in self.manifest.admission.members
            return GOOD if listed else Standing("false", "not_listed")
        if kind == "invite":
            return self._invited(record.peer, credential)
        return self._worked(record.peer, credential.ticket)

    def is_beaten(self, record: Record) -> bool:
        """Whether another peer has precedence with the same invitation."""
        return self.standing(record) == GOOD and self._before(record) is not None

    def credential(self, record: Record) -> Credential:
        """What a record carries; nothing, if that is malformed."""
        parsed = self._parse(record)
        return NOTHING if isinstance(parsed, str) else parsed

    def inviters(self, record: Record) -> tuple[str, ...]:
        """Peers that answer for a peer: the founder first, its direct inviter last; empty in swarms without invitations."""
        chain = self.credential(record).chain
        return chains.inviters(chain, self.manifest.founder) if self.manifest.admission.kind == "invite" else ()

    # --- inside -----------------------------------------------------------------------------------------------

    def _parse(self, record: Record) -> Credential | str:
        key = record.peer, hashlib.blake2b(record.credential, digest_size=16).digest()
        known = self._parsed.get(key)
        if known is not None:
            return known
        parsed = self._examine(record)
        if not isinstance(parsed, str):
            _keep(self._parsed, key, parsed)
        return parsed

    def _examine(self, record: Record) -> Credential | str:
        """What never changes about a credential: its form and its signatures."""
        try:
            credential = decode(record.credential)
            if self.manifest.admission.kind == "invite" and record.peer != self.manifest.founder:
                if not credential.chain:
                    return "credential_missing"
                chains.check(credential.chain, self.revocations.terms)
                if credential.chain[-1].holder != record.peer:
                    return "chain_of_another"
        except ValueError as error:
            return str(error)
        return credential

    def _invited(self, peer: str, credential: Credential) -> Standing:
        if peer == self.manifest.founder:
            return GOOD
        if self.revocations.voids(credential.chain) is not None:
            return Standing("lapsed", "invitation_revoked")
        if self._now_ms() >= chains.not_after_ms(credential.chain):
            return Standing("lapsed", "invitation_expired")
        return GOOD

    def _worked(self, peer: str, ticket: Ticket | None) -> Standing:
        if self._puzzle is None:
            return GOOD
        if ticket is None:
            return Standing("false", "credential_missing")
        if not self._puzzle.is_current(ticket, self.unix_s()):
            return Standing("lapsed", "work_out_of_date")
        proven = self._proven.get((peer, ticket))
        if proven is None:
            return Standing("unproven", "work_unproven")
        _keep(self._proven, (peer, ticket), proven)
        return GOOD if proven else Standing("false", "work_forged")

    def _claims(self, record: Record) -> bool:
        """Register that the peer uses its invitation. -> whether no other peer has precedence; it may displace another"""
        slot = self._slot(record)
        if not slot[0]:
            return True
        first = self._first.get(slot)
        rival = first if first is not None and first.peer != record.peer and self.standing(first) == GOOD else None
        may = rival is None or record.peer < rival.peer
        if may:
            _keep(self._first, slot, record)
        if rival is not None:
            self._changed = self._changed or may
            if slot not in self.overused and len(self.overused) < MAX_OVERUSED:
                lines = {self.credential(each).chain[-1].invitee for each in (record, rival)}
                self.overused[slot] = Overuse(
                    *slot, *((record, rival) if may else (rival, record)), signed_twice=len(lines) > 1
                )
        return may

    def _before(self, record: Record) -> Record | None:
        """The record of a peer that uses the same invitation and has precedence."""
        first = self._first.get(self._slot(record))
        return first if first is not None and first.peer < record.peer and self.standing(first) == GOOD else None

    def _slot(self, record: Record) -> Slot:
        chain = self.credential(record).chain
        if self.manifest.admission.kind != "invite" or not chain or record.peer == self.manifest.founder:
            return "", 0
        return chains.slots(chain, self.manifest.founder)[-1]

    def _now_ms(self) -> int:
        return int(self.unix_s() * 1000)


def puzzle_of(manifest: Manifest, swarm: str) -> Puzzle | None:
    """What work the swarm asks for; None if it asks for none."""
    admission = manifest.admission
    if admission.kind != "open" or not admission.bits:
        return None
    return Puzzle(swarm, admission.bits, admission.memory_kib, admission.epoch_s)


def _keep(memory: dict[K, V], key: K, value: V) -> None:
    """Remember, as the most recent; the oldest gives way."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > MAX_KEPT:
        del memory[next(iter(memory))]
