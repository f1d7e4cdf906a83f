"""Places are shared out: a flood displaces only its own connections, and late comers get an equal share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.shares import Shares


def full(*owners):
    shares = Shares(len(owners))
    for number, owner in enumerate(owners):
        assert shares.take(number, owner) == (True, None)
    return shares


def test_identities_of_one_prefix_give_up_places_to_newcomers_of_others():
    shares = full(*[("flood", f"identity {number // 8}") for number in range(64)])
    for number in range(30):
        granted, given_up = shares.take(f"honest {number}", ("home", "honest"))
        assert granted
        assert given_up in range(64)
    assert len(shares) == 64


def test_one_peer_of_a_prefix_gives_up_its_newest_place_for_another_of_the_same():
    shares = full(("home", "greedy"), ("home", "modest"), ("home", "greedy"), ("home", "greedy"))
    assert shares.take("new", ("home", "newcomer")) == (True, 3)
    assert shares.take("one more", ("home", "greedy")) == (True, 0), "of its own the oldest"


def test_owners_with_as_many_places_as_others_keep_them():
    shares = full(("a", "1"), ("b", "2"), ("c", "3"))
    assert not shares.is_free(("d", "4"))
    assert shares.take("new", ("d", "4")) == (False, None), "one each, and nobody has two more"
    shares.leave(1)
    shares.leave(1)
    assert shares.take("new", ("d", "4")) == (True, None)
    assert "new" in shares


def test_an_occupied_place_may_be_taken_again_by_its_owner():
    shares = full(("a", "1"))
    assert shares.take(0, ("b", "2")) == (True, None)
    assert shares.take(1, ("a", "1")) == (False, None)
    assert shares.take(1, ("b", "2")) == (True, 0)


def test_a_resource_needs_at_least_one_place():
    with pytest.raises(ValueError, match="most must be > 0, got 0"):
        Shares(0)


OWNERS = st.tuples(st.sampled_from("abc"), st.sampled_from("123"))


@given(st.integers(1, 12), st.lists(OWNERS, max_size=80))
def test_no_refused_owner_has_two_places_fewer_than_another(most, owners):
    """Max-min fairness at each level, among owners that share the level above."""
    shares, refused, places = Shares(most), set(), {}
    for number, owner in enumerate(owners):
        granted, given_up = shares.take(number, owner)
        assert len(shares) <= most
        assert granted or given_up is None
        places.pop(given_up, None)
        if granted:
            places[number] = owner
        else:
            refused.add(owner)
    held = list(places.values())
    assert len(shares) == len(held)
    for owner in refused if len(shares) == most else ():
        if not shares.is_free(owner):  # otherwise others have more by then
            assert owner not in held
            own = sum(each[0] == owner[0] for each in held)
            assert max(sum(each[0] == name for each in held) for name in "abc") <= own + 1
