"""Proofs and attestations from peers in any order and number; and the file of bans."""

from functools import cache

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Attestation, body
from starling.gossip.wire.schema import Evidence
from starling.node.identity import Identity, verify
from starling.node.storage.bans import MAX_DECISIONS, decode, encode
from starling.robust.evidence import EQUIVOCATION, EvidenceStore, Statements, equivocation, equivocation_check
from starling.robust.reputation import Decision
from tests.fuzz.plain import JSON_LURES, MSGPACK_LURES
from tests.fuzz.target import Choices, Target, one_line, reason_of

SWARM = "s" + "a" * 32
PEERS = 3
CHECK = equivocation_check(SWARM, verify)


@cache
def _identity(number: int) -> Identity:
    return Identity.from_seed(bytes([number]) * 32)


@cache
def _attested(peer: int, incarnation: int, round: int, vector: int, signer: int) -> Attestation:
    fields = SWARM, _identity(peer).peer_id, incarnation, round, bytes([vector]) * 32
    return Attestation(*fields, _identity(signer).sign(body(*fields)))


def _proof(data: bytes) -> bool:
    """Two bytes: the length of the first half. Accepted if it proves that peer 0 equivocated, which only it can have signed."""
    size = int.from_bytes(data[:2], "little")
    a, b = data[2 : 2 + size], data[2 + size :]
    accepted = CHECK(_identity(0).peer_id, a, b)
    assert not CHECK(_identity(1).peer_id, a, b), "no other peer is convicted"
    return accepted


def _halves(a: bytes, b: bytes) -> bytes:
    return len(a).to_bytes(2, "little") + a + b


def _proofs() -> list[bytes]:
    it = equivocation(_attested(0, 1, 5, 1, 0), _attested(0, 1, 5, 2, 0))
    return [_halves(it.a, it.b), _halves(it.b, it.a)]


def _proof_lures() -> list[bytes]:
    good = equivocation(_attested(0, 1, 5, 1, 0), _attested(0, 1, 5, 2, 0))
    forged = equivocation(_attested(0, 1, 5, 1, 1), _attested(0, 1, 5, 2, 1))
    restarted = equivocation(_attested(0, 1, 5, 1, 0), _attested(0, 2, 5, 2, 0))
    return [_halves(it.a, it.b) for it in (forged, restarted)] + [_halves(it[:4000], good.b) for it in MSGPACK_LURES]


PROOF = Target(_proof, _proofs, _proof_lures, reach=13)


class _Detection:
    """Proofs and attestations as a node stores them. Peer 0 never equivocates; the others sign anything, also in its name."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.store = EvidenceStore({EQUIVOCATION: CHECK}, limit=4, convicts=6, burst=3, per_s=0.5)
        self.statements = Statements(verify, rounds=3, burst=6, per_s=2, in_all_per_s=20, senders=3)
        self.now, self.round, self.convicted = 0.0, 5, 0

    def act(self) -> None:
        choices, sender = self.choices, f"sender {self.choices.below(5)}"
        self.now += choices.of((0.0, 0.5, 60.0, 90000.0))
        self.round += choices.of((0, 0, 1, 5))
        try:
            match choices.below(4):
                case 0:
                    self._compare(self.statements.add(own := self._attest(honest=True), self.round), own)
                case 1:
                    other = self._attest(honest=False)
                    self._compare(self.statements.receive(sender, other, self.round, self.now), other)
                case 2:
                    proof = equivocation(self._attest(honest=False), self._attest(honest=False))
                    self._convict(proof, new=self.store.receive(sender, proof, self.now))
                case _:
                    kind = choices.of((EQUIVOCATION, "another"))
                    proof = Evidence(kind, _identity(0).peer_id, choices.piece(), choices.piece())
                    self._convict(proof, new=self.store.receive(sender, proof, self.now))
        except RemoteProtocolError as error:
            reason_of(error, {"claim_forged", "evidence_proves_nothing", "too_much_evidence"}, sender)
        assert len(self.store.held(self.now)) <= 4
        assert self.store.size <= 4 + 6 + 6
        assert self.statements.size <= 3 + PEERS * (1 + 2 * 7), "two incarnations, seven rounds"

    def _attest(self, *, honest: bool) -> Attestation:
        choices = self.choices
        peer, at = choices.below(PEERS), self.round + choices.below(9) - 4
        signer = peer if honest else choices.below(PEERS)
        vector = 0 if signer == 0 and peer == 0 else choices.below(3)
        return _attested(peer, choices.below(2), max(0, at), vector, signer)

    def _compare(self, earlier: Attestation | None, later: Attestation) -> None:
        if earlier is not None:
            proof = equivocation(earlier, later)
            assert CHECK(proof.peer, proof.a, proof.b), "a contradiction is a proof for all members"
            self._convict(proof, new=self.store.add(proof, self.now))

    def _convict(self, proof: Evidence, *, new: bool) -> None:
        assert not new or proof.peer != _identity(0).peer_id, "an honest peer is never convicted"
        self.convicted += new


def _equivocations(data: bytes) -> bool:
    """Events in sequence. Accepted if a peer was convicted."""
    choices = Choices(data)
    detection = _Detection(choices)
    while choices:
        detection.act()
    return detection.convicted > 0


EQUIVOCATIONS = Target(
    _equivocations,
    lambda: [
        bytes([0, 0, 0, 2, 1, 4, 1, 0, 1, 1, 4, 1, 2, 1]),  # a proof is received
        bytes([0, 0, 0, 0, 1, 4, 1, 1, 1, 0, 0, 0, 1, 4, 2, 1]),  # two attestations contradict
    ],
    most_bytes=1024,
    reach=55,
)


def _decisions(data: bytes) -> bool:
    try:
        decisions = decode(data.decode())
    except UnicodeDecodeError:
        return False
    except ValueError as error:
        one_line(error)
        return False
    assert len(decisions) <= MAX_DECISIONS
    assert decode(encode(decisions)) == decisions
    return True


def _files() -> list[bytes]:
    two = Decision("12D3KooWliar", "ban", 1.7e9, 2, "spam"), Decision("12D3KooWpal", "trust")
    return [encode(()).encode(), encode(two).encode()]


DECISIONS = Target(_decisions, _files, lambda: JSON_LURES, reach=13)
