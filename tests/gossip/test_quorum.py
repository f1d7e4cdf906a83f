"""Which members have a vote, and how votes decide."""

from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.quorum import EXCHANGES, LATELY, LEAST, Electorate, middle, two_thirds


def test_a_vote_requires_recent_exchanges():
    voters = Electorate()
    for _ in range(EXCHANGES - 1):
        voters.exchanged("a")
    assert not voters.has_vote("a")
    voters.exchanged("a")
    assert voters.has_vote("a")
    assert voters.electors == {"a"}
    for number in range(LATELY - 1):
        voters.exchanged(f"other {number % 8}")
    assert not voters.has_vote("a")
    assert not voters.has_vote("nobody")


@given(st.lists(st.integers(0, 2000), max_size=3 * LATELY))
def test_stored_exchanges_are_bounded(peers):
    voters = Electorate()
    for peer in peers:
        voters.exchanged(str(peer))
        voters.has_vote("asked for")
    last = peers[-LATELY:]
    assert voters.electors == {str(peer) for peer in last if last.count(peer) >= EXCHANGES}
    assert len(voters.electors) <= LATELY // EXCHANGES


@given(own=st.floats(-1.0, 1.0), honest=st.lists(st.floats(-1.0, 1.0), max_size=10), lies=st.lists(st.floats(-1e9, 1e9), max_size=4))
def test_with_fewer_than_a_third_of_liars_the_median_is_within_honest_values(own, honest, lies):
    lies = lies[: len(honest) // 2]
    agreed = middle(own, [*honest, *lies])
    assert (agreed is None) == (len(honest) + len(lies) < LEAST)
    assert agreed is None or min(own, *honest) <= agreed <= max(own, *honest)


@given(own=st.booleans(), agree=st.sets(st.integers(0, 19)), n=st.integers(0, 20), strangers=st.integers(0, 50))
def test_two_thirds_of_the_electors_decide_and_never_against_this_node(own, agree, n, strangers):
    votes = dict.fromkeys(map(str, agree), True) | {f"stranger {number}": True for number in range(strangers)}
    count = own + sum(number < n for number in agree)
    assert two_thirds(own, votes, [str(number) for number in range(n)]) == (own and 3 * count >= 2 * (n + 1))
