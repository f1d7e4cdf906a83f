"""What is signed about a vector: who told two of them for one round is proved a liar, and nobody else can be."""

from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.gossip.exchange.attestation import Attestation, body, contradicts, digest, genuine


def sign(peer: str, message: bytes) -> bytes:
    return blake2b(message, key=peer.encode(), digest_size=64).digest()


def verify(peer: str, signature: bytes, message: bytes) -> bool:
    return signature == sign(peer, message)


def said(peer="a", *, swarm="swarm", incarnation=1, round=7, vector=b"vector", by=None) -> Attestation:
    told = digest(vector)
    return Attestation(
        swarm, peer, incarnation, round, told, sign(by or peer, body(swarm, peer, incarnation, round, told))
    )


def test_two_vectors_for_one_round_are_a_proof_whichever_is_named_first():
    one, other = said(vector=b"to you"), said(vector=b"to others")
    assert contradicts(one, other, verify)
    assert contradicts(other, one, verify)


def test_one_vector_told_twice_is_none():
    assert not contradicts(said(), said(), verify)


def test_other_rounds_lives_swarms_and_peers_may_have_other_vectors():
    """Who comes back from a checkpoint does a round again: that is another incarnation."""
    for other in (said(round=8), said(incarnation=2), said(swarm="another"), said("b")):
        it = Attestation(other.swarm, other.peer, other.incarnation, other.round, digest(b"other"), other.signature)
        resigned = said(other.peer, swarm=it.swarm, incarnation=it.incarnation, round=it.round, vector=b"other")
        assert genuine(resigned, verify)
        assert not contradicts(said(), resigned, verify)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    swarm=st.text(max_size=8), peer=st.text(min_size=1, max_size=8), incarnation=st.integers(0, 2**62), round=st.integers(0, 2**62),
    vector=st.binary(max_size=16),
)  # fmt: skip
def test_nobody_else_can_put_words_into_a_peers_mouth(swarm, peer, incarnation, round, vector):
    """A signature of another, or over anything else, proves nothing."""
    true = said(peer, swarm=swarm, incarnation=incarnation, round=round, vector=vector)
    forged = said(peer, swarm=swarm, incarnation=incarnation, round=round, vector=vector + b"!", by=peer + "'s enemy")
    moved = Attestation(swarm, peer, incarnation, round, digest(vector + b"!"), true.signature)
    assert genuine(true, verify)
    for lie in (forged, moved):
        assert not genuine(lie, verify)
        assert not contradicts(true, lie, verify)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    one=st.tuples(st.text(max_size=4), st.text(max_size=4), st.integers(0, 99), st.integers(0, 99), st.binary(min_size=32, max_size=32)),
    other=st.tuples(st.text(max_size=4), st.text(max_size=4), st.integers(0, 99), st.integers(0, 99), st.binary(min_size=32, max_size=32)),
)  # fmt: skip
def test_different_statements_have_different_bytes(one, other):
    """Else one signature would stand for both."""
    assert (body(*one) == body(*other)) == (one == other)
