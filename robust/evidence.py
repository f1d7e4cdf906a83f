"""Evidence that any node can verify: two statements signed by one peer that cannot both be honest.

    equivocation    two statements of one incarnation and round with different digests: different vectors were sent to different peers

No unproven accusation counts. A proof is verified first; a valid one bans the accused at once on every node that receives it, an invalid
one is a hard fault of its sender, and unproven suspicions (a high loss, a far model) are not sent.

    EvidenceStore    proofs: verified, kept for a while, each forwarded once
    Statements       statements of peers about the last rounds, searched for contradictions

Memory and verification are bounded: proofs about non-members are ignored, verifications are rate-limited per sender and in total, and a
peer's statements are kept for a few rounds around our own, so that a Byzantine peer cannot displace its earlier statements. They outlive it
and its restarts: else it would equivocate and begin a new life before anybody has compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Attestation, Verify, claim_of, contradicts, genuine, statement_of
from starling.gossip.limits import Rates, TokenBucket, keep
from starling.gossip.wire.schema import Claim, Evidence

EQUIVOCATION = "equivocation"
MAX_PEERS, LIVES = 1024, 4  # peers whose statements are kept, and their last incarnations

Check = Callable[[str, bytes, bytes], bool]
"""(peer, a, b) -> whether the two statements prove misbehaviour of the peer; False for anything malformed."""

_CLAIMS = msgspec.msgpack.Decoder(Claim)
_ENCODER = msgspec.msgpack.Encoder()


def equivocation(one: Attestation, other: Attestation) -> Evidence:
    """Proof from two contradicting statements, independent of their order."""
    a, b = sorted(_ENCODER.encode(claim_of(statement)) for statement in (one, other))
    return Evidence(EQUIVOCATION, one.peer, a, b)


def equivocation_check(swarm: str, verify: Verify) -> Check:
    """Return a verifier of equivocation proofs in the swarm with this id."""

    def check(peer: str, a: bytes, b: bytes) -> bool:
        try:
            one, other = (statement_of(_CLAIMS.decode(each), swarm) for each in (a, b))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        return one.peer == peer and contradicts(one, other, verify)

    return check


@dataclass(slots=True)
class EvidenceStore:
    """Verified proofs of one node. Time is an argument."""

    checks: Mapping[str, Check]  # verifier by kind
    limit: int = 64  # largest number of proofs stored for forwarding; the oldest is dropped first
    convicts: int = 4096  # largest number of (kind, peer) stored as known, so that a proof is forwarded once
    keeps_s: float = 86400.0  # seconds for which a proof is stored
    burst: float = 8.0  # rate limit of proofs verified per sender
    per_s: float = 0.2  # rate limit of proofs verified per sender
    _proofs: dict[tuple[str, str], tuple[Evidence, float]] = field(default_factory=dict)
    _convicted: dict[tuple[str, str], float] = field(default_factory=dict)
    _rates: Rates[str] = field(init=False)

    def __post_init__(self) -> None:
        self._rates = Rates(self.per_s, self.burst, self.convicts)

    @property
    def size(self) -> int:
        """Entries in memory: at most limit + 2 · convicts."""
        return len(self._proofs) + len(self._convicted) + len(self._rates)

    def receive(self, sender: str, evidence: Evidence, now: float) -> bool:
        """Verify a proof from a member; return whether it is new and valid, which means it must be forwarded and followed by a ban.

        The caller drops proofs from or about non-members. Raises RemoteProtocolError: evidence_proves_nothing, or too_much_evidence (rate
        limit; not verified).
        """
        if self._known(evidence, now) or evidence.kind not in self.checks:
            return False
        if not self._rates.take(sender, now):
            raise RemoteProtocolError(sender, "too_much_evidence")
        if not self.add(evidence, now):
            raise RemoteProtocolError(sender, "evidence_proves_nothing")
        return True

    def add(self, evidence: Evidence, now: float) -> bool:
        """Store a proof from local observations; return whether it is new and valid."""
        if self._known(evidence, now) or evidence.kind not in self.checks:
            return False
        if not self.checks[evidence.kind](evidence.peer, evidence.a, evidence.b):
            return False
        key = evidence.kind, evidence.peer
        for store, most in ((self._proofs, self.limit), (self._convicted, self.convicts)):
            if len(store) >= most:
                del store[next(iter(store))]
        self._proofs[key] = (evidence, now + self.keeps_s)
        self._convicted[key] = now + self.keeps_s
        return True

    def held(self, now: float) -> tuple[Evidence, ...]:
        """Return the proofs that have not expired, oldest first."""
        self._expire(now)
        return tuple(evidence for evidence, _ in self._proofs.values())

    def _known(self, evidence: Evidence, now: float) -> bool:
        self._expire(now)
        return (evidence.kind, evidence.peer) in self._convicted

    def _expire(self, now: float) -> None:
        while self._proofs and next(iter(self._proofs.values()))[1] <= now:
            del self._proofs[next(iter(self._proofs))]
        while self._convicted and next(iter(self._convicted.values())) <= now:
            del self._convicted[next(iter(self._convicted))]


@dataclass(slots=True)
class Statements:
    """Statements about the last rounds, received directly or forwarded; one per peer, incarnation and round."""

    verify: Verify  # whether a peer signed a message
    rounds: int = 8  # largest distance of a statement's round from our own
    burst: float = 128.0  # rate limit of signature checks of forwarded claims per sender
    per_s: float = 32.0  # rate limit of signature checks of forwarded claims per sender
    in_all_per_s: float = 256.0  # the same for all senders together
    senders: int = 4096  # largest number of senders with separate rate limits
    _held: dict[str, dict[tuple[int, int], Attestation]] = field(default_factory=dict)
    _rates: Rates[str] = field(init=False)
    _all: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be >= 1, got {self.rounds}")
        self._rates = Rates(self.per_s, self.burst, self.senders)
        self._all = TokenBucket(self.in_all_per_s, max(1.0, self.in_all_per_s))

    @property
    def size(self) -> int:
        """Entries in memory: at most `senders`, and for each of MAX_PEERS one and its statements of LIVES incarnations about 2 · rounds + 1
        rounds.
        """
        return len(self._rates) + len(self._held) + sum(map(len, self._held.values()))

    def add(self, statement: Attestation, round: int) -> Attestation | None:
        """Store a statement of a member's incarnation with a verified signature; return an earlier contradicting one, or None.

        `round` is our own.
        """
        stored = self._held.get(statement.peer, {})
        lives = sorted({incarnation for incarnation, _ in stored} | {statement.incarnation})[-LIVES:]
        for key in [key for key in stored if abs(key[1] - round) > self.rounds or key[0] not in lives]:
            del stored[key]
        if abs(statement.round - round) > self.rounds or statement.incarnation not in lives:
            return None
        keep(self._held, statement.peer, stored, MAX_PEERS)
        earlier = stored.setdefault((statement.incarnation, statement.round), statement)
        return earlier if earlier.digest != statement.digest else None

    def receive(self, sender: str, statement: Attestation, round: int, now: float) -> Attestation | None:
        """Store a statement forwarded by `sender`, after a check of its signature if it is new; returns as `add` does.

        Raises RemoteProtocolError: claim_forged.
        """
        stored = self._held.get(statement.peer, {}).get((statement.incarnation, statement.round))
        if (stored is not None and stored.digest == statement.digest) or abs(statement.round - round) > self.rounds:
            return None
        if not (self._rates.take(sender, now) and self._all.take(1, now)):
            return None
        if not genuine(statement, self.verify):
            raise RemoteProtocolError(sender, "claim_forged")
        return self.add(statement, round)

    def knows(self, peer: str, incarnation: int) -> bool:
        """Return whether a statement of this incarnation of a peer is held."""
        return any(life == incarnation for life, _ in self._held.get(peer, ()))
