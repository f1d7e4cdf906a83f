"""Proofs and claims that a peer sends, in any order and number; and the file in which bans are kept."""

from __future__ import annotations

from collections.abc import Iterator
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


@cache
def _identity(number: int) -> Identity:
    return Identity.from_seed(bytes([number]) * 32)


@cache
def _stated(peer: int, incarnation: int, round: int, vector: int, signer: int) -> Attestation:
    who, what = _identity(peer).peer_id, bytes([vector]) * 32
    return Attestation(
        SWARM, who, incarnation, round, what, _identity(signer).sign(body(SWARM, who, incarnation, round, what))
    )


CHECK = equivocation_check(SWARM, verify)


# --- proofs ---------------------------------------------------------------------------------------------------


def _proof(data: bytes) -> bool:
    """Two bytes: where the first half ends. Accepted if it proves that peer 0 lied, which only it can have signed."""
    size = int.from_bytes(data[:2], "little")
    a, b = data[2 : 2 + size], data[2 + size :]
    accepted = CHECK(_identity(0).peer_id, a, b)
    assert not CHECK(_identity(1).peer_id, a, b), "nobody pays for another"
    return accepted


def _halves(a: bytes, b: bytes) -> bytes:
    return len(a).to_bytes(2, "little") + a + b


def _proofs() -> Iterator[bytes]:
    it = equivocation(_stated(0, 1, 5, 1, 0), _stated(0, 1, 5, 2, 0))
    yield _halves(it.a, it.b)
    yield _halves(it.b, it.a)


def _proof_lures() -> Iterator[bytes]:
    good = equivocation(_stated(0, 1, 5, 1, 0), _stated(0, 1, 5, 2, 0))
    for lure in MSGPACK_LURES:
        yield _halves(lure[:4000], good.b)
    for one, other in (
        (_stated(0, 1, 5, 1, 1), _stated(0, 1, 5, 2, 1)),
        (_stated(0, 1, 5, 1, 0), _stated(0, 2, 5, 2, 0)),
    ):
        it = equivocation(one, other)
        yield _halves(it.a, it.b)


PROOF = Target(_proof, _proofs, _proof_lures, reach=13)


# --- a member among liars -------------------------------------------------------------------------------------


class _Court:
    """Proofs and statements as a node keeps them; it knows who really lied."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.store = EvidenceStore({EQUIVOCATION: CHECK}, limit=4, convicts=6, burst=3, per_s=0.5)
        self.heard = Statements(verify, rounds=3, burst=6, per_s=2, in_all_per_s=20, senders=3)
        self.now, self.round = 0.0, 5
        self.convicted = 0

    def act(self) -> None:
        choices, sender = self.choices, f"sender {self.choices.below(5)}"
        self.now += choices.of((0.0, 0.5, 60.0, 90000.0))
        self.round += choices.of((0, 0, 1, 5))
        try:
            match choices.below(4):
                case 0:
                    self._weigh(self.heard.note(own := self._statement(honest=True), self.round), own)
                case 1:
                    said = self._statement(honest=False)
                    self._weigh(self.heard.hear(sender, said, self.round, self.now), said)
                case 2:
                    self._receive(sender, equivocation(self._statement(honest=False), self._statement(honest=False)))
                case _:
                    kind = choices.of((EQUIVOCATION, "another"))
                    self._receive(sender, Evidence(kind, _identity(0).peer_id, choices.piece(), choices.piece()))
        except RemoteProtocolError as error:
            reason_of(error, {"claim_forged", "evidence_proves_nothing", "too_much_evidence"}, sender)
        self._check()

    def _statement(self, *, honest: bool) -> Attestation:
        """Peer 0 never lies; the others sign what they like, also in its name."""
        choices = self.choices
        peer, about = choices.below(PEERS), self.round + choices.below(9) - 4
        signer = peer if honest else choices.below(PEERS)
        vector = 0 if signer == 0 and peer == 0 else choices.below(3)
        return _stated(peer, choices.below(2), max(0, about), vector, signer)

    def _weigh(self, earlier: Attestation | None, later: Attestation) -> None:
        if earlier is not None:
            proof = equivocation(earlier, later)
            assert CHECK(proof.peer, proof.a, proof.b), "what contradicts is a proof to everybody"
            self._believe(proof, new=self.store.add(proof, self.now))

    def _receive(self, sender: str, proof: Evidence) -> None:
        self._believe(proof, new=self.store.receive(sender, proof, self.now))

    def _believe(self, proof: Evidence, *, new: bool) -> None:
        if new:
            assert proof.peer != _identity(0).peer_id, "who told one vector a round is never convicted"
            self.convicted += 1

    def _check(self) -> None:
        assert len(self.store.held(self.now)) <= 4
        assert max(len(self.store._convicted), len(self.store._rations)) <= 6
        assert len(self.heard._rations) <= 3
        assert all(len(held) <= 2 * 7 for held in self.heard._held.values()), "two lives, seven rounds"


def _court(data: bytes) -> bool:
    """Acts one after the other. Accepted if somebody was convicted."""
    choices = Choices(data)
    court = _Court(choices)
    while choices:
        court.act()
    return court.convicted > 0


def _courts() -> Iterator[bytes]:
    yield bytes([0, 0, 0, 2, 1, 4, 1, 0, 1, 1, 4, 1, 2, 1])  # one sends a proof
    yield bytes([0, 0, 0, 0, 1, 4, 1, 1, 1, 0, 0, 0, 1, 4, 2, 1])  # two statements are heard


COURT = Target(_court, _courts, most_bytes=1024, reach=55)


# --- bans on disk ---------------------------------------------------------------------------------------------


def _decisions(data: bytes) -> bool:
    try:
        text = data.decode()
        kept = decode(text)
    except ValueError as error:
        if not isinstance(error, UnicodeDecodeError):
            one_line(error)
        return False
    assert len(kept) <= MAX_DECISIONS
    assert decode(encode(kept)) == kept
    return True


def _files() -> Iterator[bytes]:
    yield encode(()).encode()
    yield encode((Decision("12D3KooWliar", "ban", 1.7e9, 2, "spam"), Decision("12D3KooWpal", "trust"))).encode()


DECISIONS = Target(_decisions, _files, lambda: iter(JSON_LURES), reach=13)
