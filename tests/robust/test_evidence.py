"""Evidence: proofs are verified, invalid ones are the sender's fault, and both cost bounded time and memory."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Attestation, body, claim_of, statement_of
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import MAX_CLAIMS, MAX_FRAME_BYTES, MAX_PROOF_BYTES, Attestations, Evidence
from starling.node.identity import Identity, verify
from starling.robust.evidence import EQUIVOCATION, LIVES, MAX_PEERS, EvidenceStore, Statements, equivocation, equivocation_check
from tests.strategies import examples

SWARM = "swarm"


@cache
def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "little"))


def attestation_of(who: int, round: int, vector: int, *, incarnation: int = 1, swarm: str = SWARM, signer: int | None = None):
    peer, digest = identity(who).peer_id, bytes([vector]) * 32
    signer = who if signer is None else signer
    return Attestation(swarm, peer, incarnation, round, digest, identity(signer).sign(body(swarm, peer, incarnation, round, digest)))


CHECK = equivocation_check(SWARM, verify)


def store(**options) -> EvidenceStore:
    return EvidenceStore({EQUIVOCATION: CHECK}, **options)


def proof(who: int, round: int = 5) -> Evidence:
    return equivocation(attestation_of(who, round, 1), attestation_of(who, round, 2))


def test_two_signed_vectors_for_one_round_prove_equivocation():
    it = proof(1)
    assert it.peer == identity(1).peer_id
    assert CHECK(it.peer, it.a, it.b)
    assert CHECK(it.peer, it.b, it.a)
    assert not CHECK(identity(2).peer_id, it.a, it.b)
    assert equivocation(attestation_of(1, 5, 2), attestation_of(1, 5, 1)) == it  # one canonical form


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (attestation_of(1, 5, 1), attestation_of(1, 5, 1)),
        (attestation_of(1, 5, 1), attestation_of(1, 6, 2)),
        (attestation_of(1, 5, 1), attestation_of(1, 5, 2, incarnation=2)),
        (attestation_of(1, 5, 1), attestation_of(1, 5, 2, swarm="another")),
        (attestation_of(1, 5, 1), attestation_of(2, 5, 2)),
        (attestation_of(1, 5, 1), attestation_of(1, 5, 2, signer=2)),
        (attestation_of(1, 5, 1, signer=2), attestation_of(1, 5, 2, signer=2)),
    ],
    ids=["one vector", "two rounds", "two incarnations", "two swarms", "two peers", "one forged", "both forged"],
)
def test_other_statements_are_no_proof(one, other):
    it = equivocation(one, other)
    assert not CHECK(identity(1).peer_id, it.a, it.b)


@given(a=st.binary(max_size=300), b=st.binary(max_size=300), position=st.integers(0, 200), bit=st.integers(0, 7))
@examples(100)
def test_arbitrary_bytes_and_a_proof_with_a_changed_bit_prove_nothing(a, b, position, bit):
    it = proof(1)
    changed = bytearray(it.a)
    changed[position % len(changed)] ^= 1 << bit
    assert not CHECK(it.peer, a, b)
    assert not CHECK(it.peer, bytes(changed), it.b)


def test_claims_and_proofs_fit_their_messages():
    it = proof(1, 2**62 - 1)
    assert len(it.a) + len(it.b) < MAX_PROOF_BYTES / 4
    longest = attestation_of(1, 2**62 - 1, 1, incarnation=2**62 - 1)
    claims = Attestations((claim_of(longest),) * MAX_CLAIMS)
    assert len(encode(claims)) < MAX_FRAME_BYTES["control"] / 4
    for message in (it, claims):
        assert decode("control", "p", encode(message)) == message
    assert statement_of(claims.claims[0], SWARM) == longest


def test_a_valid_proof_is_new_once_and_expires():
    held, it = store(keeps_s=100.0), proof(1)
    assert held.receive("a", it, 0.0)
    assert not held.receive("b", it, 1.0)
    assert not held.receive("b", proof(1, round=6), 1.0)  # one proof is enough
    assert not held.add(it, 1.0)
    assert held.held(99.0) == (it,)
    assert held.held(100.0) == ()


def test_an_invalid_proof_is_the_fault_of_its_sender_and_is_not_stored():
    held = store()
    lie = equivocation(attestation_of(1, 5, 1), attestation_of(1, 5, 2, signer=3))
    with pytest.raises(RemoteProtocolError, match="a: evidence_proves_nothing"):
        held.receive("a", lie, 0.0)
    assert held.held(0.0) == ()
    assert held.receive("b", proof(1), 0.0)
    assert not held.receive("a", Evidence("of_a_later_version", "p", b"", b""), 0.0)  # no fault


def test_checks_are_rate_limited_per_sender():
    calls = []
    held = EvidenceStore({"k": lambda *it: calls.append(it) or True}, burst=3, per_s=0.5)
    outcomes = []
    for number in range(10):
        try:
            outcomes.append(held.receive("a", Evidence("k", f"p{number}", b"", b""), 0.0))
        except RemoteProtocolError as error:
            outcomes.append(error.reason)
    assert outcomes == [True] * 3 + ["too_much_evidence"] * 7
    assert len(calls) == 3
    assert held.receive("b", Evidence("k", "p9", b"", b""), 0.0)
    assert held.receive("a", Evidence("k", "p8", b"", b""), 2.0)


def test_memory_is_bounded_and_known_proofs_stay_known():
    held = EvidenceStore({"k": lambda *_: True}, limit=4, convicts=10, burst=1)
    for number in range(8):
        assert held.receive(f"s{number}", Evidence("k", f"p{number}", b"", b""), 0.0)
    assert [it.peer for it in held.held(0.0)] == ["p4", "p5", "p6", "p7"]
    assert not held.receive("x", Evidence("k", "p0", b"", b""), 0.0)
    for number in range(100):
        held.receive(f"t{number}", Evidence("k", f"q{number}", b"", b""), 0.0)
    assert held.size == 4 + 10 + 10


def test_two_receivers_that_compare_statements_find_the_equivocator():
    one, other = Statements(verify), Statements(verify)
    first, second = attestation_of(1, 5, 1), attestation_of(1, 5, 2)
    assert one.add(first, 5) is None
    assert other.add(second, 5) is None
    found = other.receive("one", first, 5, 0.0)
    assert found == second
    it = equivocation(found, first)
    assert CHECK(it.peer, it.a, it.b)


def test_a_forged_claim_is_the_fault_of_its_sender():
    known = Statements(verify)
    with pytest.raises(RemoteProtocolError, match="a: claim_forged"):
        known.receive("a", attestation_of(1, 5, 9, signer=2), 5, 0.0)
    assert known.receive("b", attestation_of(1, 5, 1), 5, 0.0) is None
    with pytest.raises(RemoteProtocolError, match="a: claim_forged"):
        known.receive("a", attestation_of(1, 5, 9, signer=2), 5, 0.0)
    assert known.add(attestation_of(1, 5, 2), 5) == attestation_of(1, 5, 1)


def test_a_peer_cannot_displace_its_earlier_statements():
    known = Statements(lambda *_: True, rounds=4)
    assert known.add(attestation_of(1, 5, 1), 5) is None
    for far in [*range(5, 10), *range(100, 400), 2**62 - 1, 0]:
        known.receive("friend", attestation_of(1, far, 3), 5, 1000.0 * far)
    assert known.receive("b", attestation_of(1, 5, 2), 5, 1e9) == attestation_of(1, 5, 1)


@given(rounds=st.lists(st.integers(0, 60), max_size=60))
@examples(30)
def test_statements_of_few_rounds_are_kept(rounds):
    known = Statements(lambda *_: True, rounds=4)
    for own, about in enumerate(rounds):
        known.add(attestation_of(1, about, 1), own)
        assert known.size <= 1 + 9


def test_statements_of_a_peer_outlive_its_restarts_and_those_of_old_lives_are_dropped():
    known, peer = Statements(lambda *_: True), identity(1).peer_id
    for incarnation in range(1, LIVES + 1):
        assert known.add(attestation_of(1, 5, 1, incarnation=incarnation), 5) is None
    assert known.receive("b", attestation_of(1, 5, 2, incarnation=1), 5, 0.0) == attestation_of(1, 5, 1, incarnation=1)
    known.add(attestation_of(1, 5, 1, incarnation=LIVES + 1), 5)
    assert [known.knows(peer, incarnation) for incarnation in (1, 2, LIVES + 1)] == [False, True, True]
    assert known.add(attestation_of(1, 5, 1, incarnation=1), 5) is None
    assert not known.knows(peer, 1)
    assert known.size == 2 + LIVES, "one of them sent by another"


def test_statements_of_few_peers_are_kept():
    known = Statements(lambda *_: True)
    for number in range(MAX_PEERS + 10):
        known.add(replace(attestation_of(1, 5, 1), peer=f"peer {number}"), 5)
    assert known.size == 2 * MAX_PEERS
    assert not known.knows("peer 0", attestation_of(1, 5, 1).incarnation)


def test_known_claims_are_not_checked_again_and_others_are_rate_limited_per_sender_and_in_total():
    calls = []
    known = Statements(lambda *it: calls.append(it) or True)
    for sender in range(50):
        known.receive(f"s{sender}", attestation_of(1, 5, 1), 5, 0.0)
    assert len(calls) == 1
    calls.clear()
    known = Statements(lambda *it: calls.append(it) or True, burst=5, per_s=1, in_all_per_s=12)
    for sender in range(5):
        for who in range(10):
            known.receive(f"s{sender}", attestation_of(1, 5, 1, incarnation=100 * sender + who), 5, 0.0)
    assert len(calls) == 12


def test_statements_about_no_round_are_refused():
    with pytest.raises(ValueError, match="rounds"):
        Statements(verify, rounds=0)
