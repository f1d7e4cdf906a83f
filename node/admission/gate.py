"""The admission gate: decides which records may be members of one swarm; satisfies `starling.gossip.membership.gate.Gate`.

Theory of operation. A record that comes here is signed by its peer. Its credential is in one of these states:

    false      no honest member can have sent it: malformed, missing, wrongly signed, work found wrong
    unproven   a proof of work that has not been evaluated yet: not admitted, but added to `unproven` to be evaluated
    lapsed     it was good once or may be elsewhere: expired, revoked, or of another epoch
    good       admitted, unless another peer uses the same invitation

An invitation that two peers use admits neither, until one of the credentials ends; both records are the proof, which any node can check.
Members so agree on the list whichever record they saw first, and a banned peer does not come back under another key: keys cost nothing,
invitations are what is scarce. Who lost a key asks for a new invitation. That both exist is recorded as evidence against the inviter. The
node itself is always in its own list; `standing` is how others see it. The time is a function given at construction, so that the
membership core need not know that credentials end.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from starling.gossip.limits import keep
from starling.gossip.wire.schema import Record, Revocation
from starling.node.admission import chain as chains
from starling.node.admission.chain import Slot
from starling.node.admission.credential import NOTHING, Credential, Ticket, decode
from starling.node.admission.revocations import Revocations
from starling.node.admission.work import Puzzle
from starling.node.config.schema import Manifest
from starling.node.identity import peer_id_of

MAX_KEPT = 8192  # bound of everything stored per peer; twice the largest number of members
MAX_FALSE = 512
MAX_UNPROVEN = 512
MAX_OVERUSED = 256

State = Literal["good", "unproven", "lapsed", "false"]


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a credential now (see above), and the reason in snake_case why it is not good; "" if it is."""

    state: State
    reason: str = ""


GOOD = Standing("good")


@dataclass(frozen=True, slots=True)
class Overuse:
    """One invitation used by two peers: both records are signed by their peers and contain it.

    `signed_twice`: the inviter signed it once for each; otherwise both used one invite line, shared or stolen.
    """

    inviter: str
    number: int
    first: Record
    second: Record
    signed_twice: bool


@dataclass(slots=True)
class Gatekeeper:
    """The gate of one node `me`, by the admission rules of the swarm's manifest; `unix_s` is the time."""

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
    _false: dict[tuple[str, bytes], str] = field(default_factory=dict)  # stored separately, so that they displace no valid ones
    _proven: dict[tuple[str, Ticket], bool] = field(default_factory=dict)
    _users: dict[Slot, tuple[Record, ...]] = field(default_factory=dict)  # one record, or two of different peers
    _changed: bool = False

    def __post_init__(self) -> None:
        self.revocations = Revocations(chains.terms_of(self.manifest, self.swarm))
        self._puzzle = puzzle_of(self.manifest, self.swarm)

    @property
    def size(self) -> int:
        """Number of credentials and works remembered as good, at most 2 · MAX_KEPT."""
        return len(self._parsed) + len(self._proven)

    @property
    def closed(self) -> bool:
        """Return whether members need a credential."""
        return self.manifest.admission.kind != "open" or self._puzzle is not None

    @property
    def revoked(self) -> tuple[Revocation, ...]:
        """Return all known revocations."""
        return self.revocations.listed

    @property
    def digest(self) -> bytes:
        """Return the digest of `revoked`."""
        return self.revocations.digest

    def fault(self, record: Record) -> str:
        """Why no honest member can have sent this record, in snake_case; "" if one can."""
        standing = self.standing(record)
        return standing.reason if standing.state == "false" else ""

    def admits(self, record: Record) -> bool:
        """Return whether the peer may be a member now."""
        if record.peer == self.me:
            return True
        standing = self.standing(record)
        if standing.state == "unproven" and len(self.unproven) < MAX_UNPROVEN:
            self.unproven.append(record)
        return standing == GOOD and self._claims(record)

    def answer(self, record: Record) -> Revocation | Record | None:
        """Return the proof against a record that is not admitted: its revocation, or another peer's record with the same invitation."""
        standing = self.standing(record)
        if standing.reason == "invitation_revoked":
            return self.revocations.voids(self.credential(record).chain, self._now_ms())
        return self._rival(record) if standing == GOOD else None

    def revoke(self, revocations: Sequence[Revocation]) -> list[Revocation]:
        """Add revocations; return the new ones.

        Raises ValueError: one is invalid, or this swarm has no invitations; then none was added.
        """
        if revocations and self.manifest.admission.kind != "invite":
            raise ValueError("nothing_to_revoke")
        new = self.revocations.add(revocations, self._now_ms())
        self._changed = self._changed or bool(new)
        return new

    def changed(self) -> bool:
        """Return whether an answer of `admits` may have changed since the last call, other than by time."""
        changed, self._changed = self._changed, False
        return changed

    def prove(self, record: Record, *, good: bool) -> None:
        """The work in a record was evaluated."""
        ticket = self.credential(record).ticket
        if ticket is not None:
            keep(self._proven, (record.peer, ticket), good, MAX_KEPT)

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

    def is_shared(self, record: Record) -> bool:
        """Return whether another peer uses the same invitation, so that it admits neither."""
        return self.standing(record) == GOOD and self._rival(record) is not None

    def credential(self, record: Record) -> Credential:
        """Return the credential of a record; an empty one if that is malformed."""
        parsed = self._parse(record)
        return NOTHING if isinstance(parsed, str) else parsed

    def inviters(self, record: Record) -> tuple[str, ...]:
        """Peers that answer for a peer: the creator first, its direct inviter last; empty in swarms without invitations."""
        chain = self.credential(record).chain
        return chains.inviters(chain, self.manifest.founder) if self.manifest.admission.kind == "invite" else ()

    def invitations(self, record: Record) -> tuple[str, ...]:
        """Return the keys that a record's invitations were given to, as peer ids, its own last; empty in swarms without invitations."""
        chain = self.credential(record).chain if self.manifest.admission.kind == "invite" else ()
        return tuple(peer_id_of(link.invitee) for link in chain)

    def _parse(self, record: Record) -> Credential | str:
        key = _key(record)
        known = self._parsed.get(key) or self._false.get(key)
        if known is None:
            known = self.examine(record)
            self.learn(record, known)
        return known

    def learn(self, record: Record, examined: Credential | str) -> None:
        """Store the result of `examine` for a record."""
        if isinstance(examined, str):
            keep(self._false, _key(record), examined, MAX_FALSE)
        else:
            keep(self._parsed, _key(record), examined, MAX_KEPT)

    def examine(self, record: Record) -> Credential | str:
        """Check form and signatures of a credential, which never change; reads no mutable state, so any thread may call it.

        Return the credential, or the reason in snake_case why no honest member can have sent it.
        """
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
        if self.revocations.voids(credential.chain, self._now_ms()) is not None:
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
        keep(self._proven, (peer, ticket), proven, MAX_KEPT)
        return GOOD if proven else Standing("false", "work_forged")

    def _claims(self, record: Record) -> bool:
        """Register that the peer uses its invitation; return whether it is the only one; if not, another member may be removed."""
        slot = self._slot(record)
        if not slot[0]:
            return True
        rival, users = self._rival(record), self._users.get(slot, ())
        if rival is None:
            keep(self._users, slot, (record,), MAX_KEPT)
        elif len(users) == 1:
            keep(self._users, slot, (rival, record), MAX_KEPT)
            self._changed = True
            if len(self.overused) < MAX_OVERUSED:
                lines = {self.credential(each).chain[-1].invitee for each in (rival, record)}
                self.overused[slot] = Overuse(*slot, rival, record, signed_twice=len(lines) > 1)
        return rival is None

    def _rival(self, record: Record) -> Record | None:
        """Return the record of another peer that uses the same invitation and whose credential is good."""
        users = self._users.get(self._slot(record), ())
        return next((user for user in users if user.peer != record.peer and self.standing(user) == GOOD), None)

    def _slot(self, record: Record) -> Slot:
        chain = self.credential(record).chain
        if self.manifest.admission.kind != "invite" or not chain or record.peer == self.manifest.founder:
            return "", 0
        return chains.slots(chain, self.manifest.founder)[-1]

    def _now_ms(self) -> int:
        return int(self.unix_s() * 1000)


def puzzle_of(manifest: Manifest, swarm: str) -> Puzzle | None:
    """Return the proof of work that the swarm requires, if any."""
    admission = manifest.admission
    if admission.kind != "open" or not admission.bits:
        return None
    return Puzzle(swarm, admission.bits, admission.memory_kib, admission.epoch_s)


def _key(record: Record) -> tuple[str, bytes]:
    return record.peer, hashlib.blake2b(record.credential, digest_size=16).digest()
