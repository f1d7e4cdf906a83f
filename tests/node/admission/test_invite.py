"""Invite strings: they survive copying, and a damaged one is reported in one line."""

import base58
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.node.admission import invite as invites
from starling.node.admission.invite import Invite
from tests.harness.invitations import SWARM, chain_of

PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
INVITE = Invite("szqrpi3amiarlozqhdswsbdg7m5ou3swn", (f"/ip4/203.0.113.7/tcp/4001/p2p/{PEER}",))
INVITED = Invite(SWARM, INVITE.bootstrap, chain_of(2), bytes(32))
GOLDEN = (
    "starling1:2YqmKZdzBQQnJjTy7hhieJ8Hct72rLjvvscMpz4dnPXy9TrBBekX1VM6uYSS8MCQE3PTgdMggv52e5bY3xPbVYiLfxrA4JE4G2M7LwbCbN6WU6PG"
    "hRfK1pMtWbwNaK1RjJGBfqp8gBmb8wzp4R2QBmNPjuhaDCHar2QPsK"
)


def test_the_invite_format_is_golden():
    assert invites.decode(GOLDEN) == Invite(INVITE.swarm, (f"/ip4/1.2.3.4/tcp/4001/p2p/{PEER}",))


addresses = st.builds("/ip4/{}/tcp/{}/p2p/".format, st.ip_addresses(v=4), st.integers(1, 65535)).map(lambda a: a + PEER)


@given(st.lists(addresses, min_size=1, max_size=8))
def test_an_invite_survives_encoding(bootstrap):
    invite = Invite(INVITE.swarm, tuple(bootstrap))
    text = invites.encode(invite)
    assert invites.decode(f" {text}\n") == invite
    assert text.isascii()
    assert " " not in text


@given(
    st.sampled_from([INVITE, INVITED]), st.integers(0, 10**6), st.sampled_from("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")
)
def test_one_changed_character_is_noticed(invite, where, character):
    text = invites.encode(invite)
    assert invites.decode(text) == invite
    assert text.startswith(invites.INVITED if invite.chain else invites.PREFIX)
    at = len(invites.PREFIX) + where % (len(text) - len(invites.PREFIX))
    changed = text[:at] + character + text[at + 1 :]
    if changed != text:
        with pytest.raises(ConfigError, match="damaged"):
            invites.decode(changed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not one"),
        ("hello", "is not one"),
        ("https://example.org/" + "x" * 100, "is not one"),
        ("two\nlines", "is not one"),
        ("starling1:" + "z" * 9000, "is not one"),
        ("starling1:", "damaged"),
        ("starling1:0OIl", "damaged"),
        ("starling1:é", "damaged"),
        (GOLDEN[:-1], "damaged"),
        ("starling3:abc", "is of version 3"),
    ],
)
def test_a_bad_invite_gives_one_clear_line(text, says):
    with pytest.raises(ConfigError, match=says) as error:
        invites.decode(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "packed", [b"\xc0", b"\x92\xa1s\x90", b"\x92\x01\x91\xa2/x", b"\x93\xa1s\x91\xa2/x\x00", b"\x92\xa1s\x91\x01", b"\x92\xa1s\x91\xa3abc"]
)
def test_an_invite_with_a_valid_checksum_and_wrong_content_is_refused(packed):
    text = invites.PREFIX + base58.b58encode(packed + invites.checksum_of(invites.PREFIX, packed)).decode()
    with pytest.raises(ConfigError, match="damaged"):
        invites.decode(text)


@pytest.mark.parametrize(
    ("swarm", "bootstrap"),
    [
        ("", ("/ip4/1.2.3.4/tcp/1/p2p/" + PEER,)),
        ("s" * 65, ("/x/p2p/" + PEER,)),
        ("s", ()),
        ("s", ("/ip4/1.2.3.4/tcp/1",)),
        ("s", ("/x/p2p/" + PEER,) * 9),
        ("s", ("/ x/p2p/" + PEER,)),
        ("s", ("/" + "x" * 300 + "/p2p/" + PEER,)),
    ],
)
def test_an_invite_without_a_usable_address_cannot_be_made(swarm, bootstrap):
    with pytest.raises(ValueError, match="must"):
        Invite(swarm, bootstrap)
