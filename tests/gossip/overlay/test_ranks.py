"""Ranks nobody chose, and the short name of a member list."""

from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.overlay.ranks import digest, ranked

members = st.lists(st.text("abcd", min_size=1, max_size=4), unique=True, max_size=12)


@given(members=members, data=st.data())
def test_ranks_and_digest_do_not_depend_on_the_order_in_which_members_were_met(members, data):
    shuffled = data.draw(st.permutations(members))
    assert ranked(shuffled, b"salt") == ranked(members, b"salt")
    assert digest(shuffled) == digest(members)
    assert sorted(ranked(members, b"salt")) == sorted(members)


@given(members=members, gone=st.integers(0, 11))
def test_a_missing_member_does_not_reorder_the_others_but_changes_the_digest(members, gone):
    rest = [peer for i, peer in enumerate(members) if i != gone]
    assert ranked(rest, b"salt") == tuple(peer for peer in ranked(members, b"salt") if peer in rest)
    assert (digest(rest) == digest(members)) == (len(rest) == len(members))


def test_another_salt_is_another_order():
    peers = [f"peer{i}" for i in range(50)]
    assert ranked(peers, b"a") != ranked(peers, b"b")


def test_ids_that_run_together_are_told_apart():
    assert digest(["ab", "c"]) != digest(["a", "bc"])


def test_the_digest_and_the_order_never_change_between_versions():
    """Nodes of different versions compare digests and share ranks."""
    assert digest(["a", "b"]).hex() == "35364c858d7b5928d7d52325e224f9a6"
    assert "".join(ranked("abcdefgh", b"salt")) == "gaehcdfb"
