"""Signatures about vectors: a peer that signs two for one round is proven Byzantine, and no other peer can be."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.attestation import Attestation, body, contradicts, digest, genuine
from tests.harness.signatures import sign, verify
from tests.strategies import examples


def attested(peer="a", *, swarm="swarm", incarnation=1, round=7, vector=b"vector", by=None) -> Attestation:
    hashed = digest(vector)
    return Attestation(swarm, peer, incarnation, round, hashed, sign(by or peer, body(swarm, peer, incarnation, round, hashed)))


@pytest.mark.parametrize("forged", [attested(vector=b"other", by="b"), replace(attested(), digest=digest(b"other"))])
def test_no_other_peer_can_attest_for_a_peer(forged):
    assert not genuine(forged, verify)
    assert not contradicts(attested(), forged, verify)


@pytest.mark.slow
@examples(40)
@given(
    one=st.tuples(st.text(max_size=4), st.text(max_size=4), st.integers(0, 99), st.integers(0, 99), st.binary(min_size=32, max_size=32)),
    other=st.tuples(st.text(max_size=4), st.text(max_size=4), st.integers(0, 99), st.integers(0, 99), st.binary(min_size=32, max_size=32)),
)
def test_different_attestations_have_different_bytes(one, other):
    assert (body(*one) == body(*other)) == (one == other)
