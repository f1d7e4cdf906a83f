"""Outer parameters that members choose where theirs differ: equal for all, and between those of honest members whatever liars do."""

from collections import Counter
from itertools import count

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from starling.gossip.limits import tolerable
from starling.gossip.mix.broadcast_codec import anchor_digest
from starling.gossip.mix.common_outer import NOTHING, UNKNOWN, Wanted, lower_median, wanted

A, B, C, D = (bytes([number]) * 8 for number in range(1, 5))


@pytest.mark.parametrize(
    ("own", "reported", "members", "expected"),
    [
        (A, {"b": A, "c": A, "d": A}, 4, NOTHING),
        (A, {"b": A, "c": A, "d": B}, 4, NOTHING),
        (B, {"b": A, "c": A, "d": A}, 4, Wanted({A: ("b", "c", "d")}, 0, 3)),
        (A, {"b": A, "c": B, "d": B}, 4, NOTHING),
        (B, {"b": A, "c": A, "d": B}, 4, Wanted({A: ("b", "c")}, 0, 2)),
        (A, {"b": B, "c": C, "d": D}, 4, Wanted({B: ("b",), C: ("c",), D: ("d",)}, 1, 3)),
        (A, {"b": B, "c": C}, 4, Wanted({B: ("b",), C: ("c",)}, 1, 3)),
        (A, {"b": B, "c": C}, 3, Wanted({B: ("b",), C: ("c",)}, 1, 3)),
        (A, {"b": B}, 3, NOTHING),
        (A, {"b": B}, 2, NOTHING),
        (A, {"b": A, "c": B, "d": B, "e": C, "f": C, "g": D}, 7, Wanted({B: ("c", "d"), C: ("e", "f"), D: ("g",)}, 2, 5)),
        (D, {"b": A, "c": A, "d": A, "e": B, "f": B, "g": B}, 7, Wanted({A: ("b", "c", "d")}, 0, 3)),
        (A, {"b": UNKNOWN, "c": A, "d": UNKNOWN}, 4, NOTHING),
        (A, {"b": UNKNOWN, "c": B, "d": UNKNOWN}, 4, NOTHING),
        (UNKNOWN, {"b": A, "c": A, "d": A}, 4, NOTHING),
        (A, {}, 1, NOTHING),
    ],
    ids=str,
)
def test_a_node_takes_what_more_than_the_liars_have_else_the_median_of_enough(own, reported, members, expected):
    assert wanted(own, reported, members) == expected


vectors = st.lists(st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3), min_size=1, max_size=9)


@given(rows=vectors, data=st.data())
def test_the_lower_median_stays_if_one_voice_becomes_the_median_and_follows_what_all_add(rows, data):
    """So nodes that take it in different rounds end with equal bits."""
    each = [torch.tensor(row) for row in rows]
    ones = [1] * len(each)
    median = lower_median(each, ones)
    at = data.draw(st.integers(0, len(each) - 1))
    assert torch.equal(lower_median([*each[:at], median, *each[at + 1 :]], ones), median)
    message = torch.tensor(data.draw(st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3)))
    assert torch.equal(lower_median([row + 1.3 * message / 7 for row in each], ones), median + 1.3 * message / 7)


@given(rows=vectors, data=st.data())
def test_voices_count_as_often_as_they_say_and_nothing_is_modified(rows, data):
    each = [torch.tensor(row) for row in rows]
    copies = [row.clone() for row in each]
    voices = data.draw(st.lists(st.integers(1, 4), min_size=len(each), max_size=len(each)))
    repeated = [row for row, times in zip(each, voices, strict=True) for _ in range(times)]
    assert torch.equal(lower_median(each, voices), torch.stack(repeated).sort(0).values[(len(repeated) - 1) // 2])
    assert all(map(torch.equal, each, copies))


def test_the_median_of_long_vectors_is_that_of_their_parts():
    each = torch.randn(5, (1 << 18) + 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lower_median(list(each), [1] * 5), each.sort(0).values[2])


def test_zeros_of_either_sign_give_equal_bits_in_any_order_and_a_single_vector_keeps_them():
    zeros = [torch.tensor([0.0]), torch.tensor([-0.0])]
    assert anchor_digest(lower_median(zeros, [1, 1])) == anchor_digest(lower_median(zeros[::-1], [1, 1])) == anchor_digest(zeros[0])
    assert anchor_digest(lower_median(zeros[1:], [3])) == anchor_digest(zeros[1])


class Members:
    """Honest members, whose outer parameters (d,) differ, and liars that report and give what they like, to whom they like."""

    def __init__(self, honest: list[torch.Tensor], liars: int):
        self.outer = {f"h{number}": outer for number, outer in enumerate(honest)}
        self.liars = [f"l{number}" for number in range(liars)]

    def turn(self, claims, gives, absent=frozenset()):
        """Let all honest members do what a round lets them do: `claims` of liars by name, `gives(liar, member)`; some do nothing."""
        store = {anchor_digest(outer): outer for outer in (*self.outer.values(), *claims.values())}
        reported = {name: anchor_digest(outer) for name, outer in (self.outer | claims).items()}
        after = dict(self.outer)
        for me, own in self.outer.items():
            others = {peer: digest for peer, digest in reported.items() if peer != me}
            found = wanted(reported[me], others, len(reported))
            came = {
                digest: len(peers)
                for digest, peers in found.sources.items()
                if any(peer in self.outer or gives(peer, me) for peer in peers)
            }
            if me in absent or not came or sum(came.values()) + found.own < found.voices:
                continue
            ours = [own] * bool(found.own)
            after[me] = lower_median([*(store[digest] for digest in came), *ours], [*came.values(), *[found.own] * len(ours)])
        self.outer = after

    @property
    def different(self):
        return len({anchor_digest(outer) for outer in self.outer.values()})


@st.composite
def swarms(draw, most_liars=3):
    """Draw honest outer parameters that all differ or fall into groups, and fewer than a third of liars."""
    members = draw(st.integers(4, 10))
    liars = draw(st.integers(0, min(most_liars, (members - 1) // 3)))
    groups = draw(st.integers(1, members - liars))
    tensors = torch.randn(groups, 3, generator=torch.Generator().manual_seed(draw(st.integers(0, 10**6)))).round(decimals=1)
    return Members([tensors[draw(st.integers(0, groups - 1))].clone() for _ in range(members - liars)], liars)


def lies(draw, members):
    """Draw what each liar claims, another's or its own, and to whom it gives it."""
    known = st.sampled_from([torch.full((3,), 1e6), torch.full((3,), -1e6), torch.zeros(3), *members.outer.values()])
    claims = {liar: draw(known) for liar in members.liars}
    give = {(liar, peer): draw(st.booleans()) for liar in members.liars for peer in members.outer}
    return claims, lambda liar, peer: give[liar, peer]


@given(members=swarms(), data=st.data())
def test_whatever_liars_do_honest_members_stay_between_each_other(members, data):
    first = torch.stack(list(members.outer.values()))
    for _ in range(3):
        members.turn(*lies(data.draw, members), absent=data.draw(st.sets(st.sampled_from(sorted(members.outer)))))
        assert all(bool(((first.amin(0) <= it) & (it <= first.amax(0))).all()) for it in members.outer.values())


@given(members=swarms(), data=st.data())
def test_liars_that_treat_all_alike_cost_no_second_turn(members, data):
    claims, _ = lies(data.draw, members)
    silent = data.draw(st.sets(st.sampled_from([*members.liars, "nobody"])))
    members.turn(claims, lambda liar, _member: liar not in silent)
    assert members.different == 1


@given(members=swarms(), data=st.data())
def test_after_liars_have_treated_members_differently_one_turn_is_enough(members, data):
    for _ in range(data.draw(st.integers(0, 2))):
        members.turn(*lies(data.draw, members), absent=data.draw(st.sets(st.sampled_from(sorted(members.outer)))))
    claims, _ = lies(data.draw, members)
    members.turn(claims, lambda _liar, _member: True)
    assert members.different == 1


@given(members=swarms(most_liars=1), data=st.data())
def test_a_single_liar_cannot_keep_honest_members_apart_for_two_turns(members, data):
    """It gives its own to some and not to others; of three honest members two have then the same, which is more than one liar."""
    for _ in range(2):
        members.turn(*lies(data.draw, members))
    assert members.different == 1


@given(members=swarms(most_liars=0), data=st.data())
def test_members_may_take_their_turns_in_different_rounds(members, data):
    names = data.draw(st.permutations(sorted(members.outer)))
    for at in count():
        if members.different == 1:
            break
        members.turn({}, lambda _liar, _member: True, absent=set(names) - {names[at % len(names)]})
        assert at < 2 * len(names)
    assert max(Counter(map(anchor_digest, members.outer.values())).values()) > tolerable(len(names))
