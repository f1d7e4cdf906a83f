"""Chains of invitations: each link is signed by the inviter, for one peer, used once, and cannot be altered."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from starling.gossip.wire.schema import MAX_CREDENTIAL_BYTES
from starling.node.admission import chain as chains
from starling.node.admission import credential as credentials
from starling.node.admission.chain import MAX_LINKS, Terms, check, inviters, not_after_ms, slots
from starling.node.admission.credential import Credential, Ticket
from starling.node.identity import Identity, public_key_of
from tests.harness.invitations import CREATOR, END_MS, PEOPLE, SWARM, TERMS, chain_of, one_more
from tests.strategies import examples


@given(length=st.integers(1, 3), bearers=st.lists(st.booleans(), min_size=3, max_size=3))
@examples(15)
def test_a_fully_signed_chain_is_valid_and_names_the_responsible_member(length, bearers):
    chain = chain_of(length, bearers=bearers)
    check(chain, TERMS)
    assert [link.holder for link in chain] == [who.peer_id for who in PEOPLE[1 : length + 1]]
    assert inviters(chain, CREATOR.peer_id) == tuple(who.peer_id for who in PEOPLE[:length])
    assert slots(chain, CREATOR.peer_id) == tuple((who.peer_id, 0) for who in PEOPLE[:length])
    assert chains.from_bytes(chains.encode(chain)) == chain


@given(data=st.data())
@examples(60)
def test_a_chain_with_any_changed_byte_is_invalid(data):
    raw = bytearray(chains.encode(CHAIN))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="chain_"):
        check(chains.from_bytes(bytes(raw)), TERMS)


CHAIN = chain_of(3)
KEY = public_key_of(PEOPLE[9].peer_id)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"depth": 1}, "chain_signature"),
        ({"quota": 2}, "chain_signature"),
        ({"not_after_ms": END_MS + 1}, "chain_signature"),
        ({"number": 1}, "chain_signature"),
        ({"invitee": KEY}, "chain_signature"),
        ({"bound": KEY}, "chain_binding"),
        ({"bound": b"", "bound_signature": b""}, "chain_signature"),
        ({"depth": 3}, "chain_beyond_depth"),
        ({"quota": 4}, "chain_beyond_depth"),
    ],
)
def test_the_terms_of_an_invitation_are_set_by_its_inviter(changed, reason):
    first, *rest = CHAIN
    with pytest.raises(ValueError, match=reason):
        check((structs.replace(first, **changed), *rest), TERMS)


def test_a_chain_is_valid_for_one_swarm_only():
    with pytest.raises(ValueError, match="chain_signature"):
        check(CHAIN, replace(TERMS, swarm=SWARM + "b"))
    with pytest.raises(ValueError, match="chain_signature"):
        check(CHAIN, replace(TERMS, creator=PEOPLE[5].peer_id))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_chains_longer_than_the_manifest_s_depth_are_refused(length):
    terms = replace(TERMS, depth=length)
    chain = chain_of(length, terms=terms)
    assert chain[-1].depth == 0
    with pytest.raises(ValueError, match="chain_too_deep"):
        one_more(chain, PEOPLE[length], length + 1, terms=terms)
    with pytest.raises(ValueError, match=r"chain_(too_deep|beyond_depth)"):
        check(chain_of(length + 1, terms=replace(TERMS, depth=length + 1)), terms)


@pytest.mark.parametrize("number", [3, 4, 2**31])
def test_a_member_gives_no_more_invitations_than_its_quota(number):
    with pytest.raises(ValueError, match="chain_beyond_quota"):
        one_more(chain_of(1), PEOPLE[1], 2, number=number)
    check(one_more((), CREATOR, 1, number=number), TERMS)


def test_an_inviter_can_grant_no_more_than_it_has():
    chain = one_more((), CREATOR, 1, quota=1, until=1000)
    assert not_after_ms(one_more(chain, PEOPLE[1], 2, until=5000)) == 1000
    check(one_more(chain, PEOPLE[1], 2, number=0), TERMS)
    with pytest.raises(ValueError, match="chain_beyond_quota"):
        one_more(chain, PEOPLE[1], 2, number=1)
    with pytest.raises(ValueError, match="chain_beyond_depth"):
        one_more((), CREATOR, 1, quota=4)


def test_a_member_cannot_invite_its_inviters():
    with pytest.raises(ValueError, match="chain_loop"):
        check(one_more(chain_of(1), PEOPLE[1], 1), TERMS)
    with pytest.raises(ValueError, match="chain_loop"):
        one_more(chain_of(1), PEOPLE[1], 0, bearer=False)


def test_an_intercepted_invitation_chain_is_useless():
    *above, last = CHAIN
    thief = Identity.from_seed(b"t" * 32)
    for signature in (last.bound_signature, thief.sign(b"starling/bearer/1\0")):
        with pytest.raises(ValueError, match="chain_binding"):
            check((*above, structs.replace(last, bound=public_key_of(thief.peer_id), bound_signature=signature)), TERMS)


def test_the_longest_credential_fits_into_a_record():
    terms = Terms(SWARM, CREATOR.peer_id, depth=MAX_LINKS, quota=64)
    chain = ()
    for to in range(1, MAX_LINKS + 1):
        number = 2**32 - 1 if to == 1 else 63 if to < MAX_LINKS else 0
        chain = one_more(chain, PEOPLE[to - 1], to, terms=terms, number=number, until=2**53)
    raw = credentials.encode(Credential("𐍈" * 64, None, chain))
    assert len(raw) <= MAX_CREDENTIAL_BYTES
    assert credentials.decode(raw).chain == chain


@given(
    operator=st.text(st.characters(codec="utf-8"), max_size=70),
    ticket=st.none() | st.builds(Ticket, st.integers(0, 2**62), st.integers(0, 2**62)),
)
@examples(60)
def test_a_credential_survives_encoding_or_is_refused(operator, ticket):
    credential = Credential(operator, ticket, CHAIN[:1])
    if len(operator) <= 64 and operator.isprintable():
        assert credentials.decode(credentials.encode(credential)) == credential
    else:
        with pytest.raises(ValueError, match="operator"):
            credentials.encode(credential)


@given(
    st.binary(min_size=1, max_size=80).filter(lambda raw: raw != b"\x90")  # an empty chain is valid too
    | st.sampled_from([b"\x93\xa0\xc0\x90", b"\xdd\xff\xff\xff\xff", bytes(5000)])
)
@examples(100)
def test_an_invalid_credential_is_refused_by_name(raw):
    with pytest.raises(ValueError, match=r"^credential_malformed$"):
        credentials.decode(raw)
    with pytest.raises(ValueError, match=r"^chain_malformed$"):
        chains.from_bytes(raw)
