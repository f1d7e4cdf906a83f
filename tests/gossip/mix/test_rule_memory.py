"""A rule's memory of its peers: each peer has a slot, and the longest absent one is replaced."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.mix.rule_memory import assign_slots, cleared, slot_of


def assigned(taken, present, slots):
    """Return the slots after a round, and those given to new peers, which are cleared."""
    after, kept, _ = assign_slots(taken, present, [True] * len(present), torch.ones(slots), slots)
    return after, tuple(torch.nonzero(kept == 0).view(-1).tolist())


rounds = st.lists(st.sets(st.integers(0, 9)).map(sorted), max_size=12)


@given(rounds, st.integers(1, 6))
def test_peers_have_distinct_slots_and_a_newcomers_is_cleared(here, slots):
    taken = {}
    for present in here:
        before = dict(taken)
        taken, given_now = assigned(taken, present, slots)
        assert len(set(taken.values())) == len(taken) <= slots
        assert set(taken.values()) <= set(range(slots))
        new = [peer for peer in taken if before.get(peer) != taken[peer]]
        assert sorted(taken[peer] for peer in new) == sorted(given_now)
        assert all(peer not in before for peer in new)  # a peer keeps its slot or has none
        assert len(set(present) & taken.keys()) == min(len(present), slots)


def test_the_longest_absent_peer_is_replaced_and_present_ones_keep_their_slot():
    taken, given_now = assigned({}, ["a", "b", "c"], 3)
    assert (taken, given_now) == ({"a": 0, "b": 1, "c": 2}, (0, 1, 2))
    taken, given_now = assigned(taken, ["a"], 3)
    assert given_now == ()
    taken, given_now = assigned(taken, ["d"], 3)
    assert (taken, given_now) == ({"c": 2, "a": 0, "d": 1}, (1,))
    taken, given_now = assigned(taken, ["a", "c", "d", "e"], 3)
    assert (set(taken), given_now) == ({"a", "c", "d"}, ()), "e stands"


def test_replacing_a_stage_peer_forgets_only_its_state():
    kept = torch.arange(1.0, 7.0)
    taken, after, places = assign_slots({"a": 0, "b": 1}, ["b", "c", "d"], [True, False, True], kept, 2)
    assert taken == {"b": 1, "d": 0}
    assert places.tolist() == [1, -1, 0]
    assert after.tolist() == [0, 0, 0, 4, 5, 6]
    assert kept.tolist() == [1, 2, 3, 4, 5, 6]
    assert slot_of(cleared(kept, 3, [2]), 3, 1).tolist() == [3, 4]
