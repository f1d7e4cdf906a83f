"""Cuts and crews are the best there are: against trying all of them."""

import itertools
import random

import pytest

from starling.gossip.pipeline.cut import cut
from starling.gossip.pipeline.schedule import Pipeline, simulated
from starling.node.plan.place import place


def all_cuts(costs, speeds, sizes):
    """The least time of the slowest stage over every cut that fits."""
    count, n = len(costs), len(speeds)
    for inner in itertools.combinations(range(1, count), n - 1):
        ends = (*inner, count)
        stages = list(zip((0, *inner), ends, strict=True))
        if all(b - a <= size for (a, b), size in zip(stages, sizes, strict=True)):
            yield max(sum(costs[a:b]) / v for (a, b), v in zip(stages, speeds, strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_is_better(seed):
    draw = random.Random(seed)
    costs, n = [draw.uniform(0.5, 2.0) for _ in range(draw.randint(3, 9))], draw.randint(1, 4)
    speeds, sizes = [draw.choice((1, 2, 4)) for _ in range(n)], [draw.randint(1, 6) for _ in range(n)]
    found = cut(costs, speeds, lambda stage, first, end: end - first <= sizes[stage])
    best = min(all_cuts(costs, speeds, sizes), default=None) if n <= len(costs) else None
    if best is None:
        assert found is None
        return
    assert len(found) == n
    firsts = (0, *found[:-1])
    assert all(b - a <= size for a, b, size in zip(firsts, found, sizes, strict=True))
    assert max(sum(costs[a:b]) / v for a, b, v in zip(firsts, found, speeds, strict=True)) == pytest.approx(best)


def test_unequal_machines_get_unequal_parts():
    """24 blocks and a head that costs three, speeds 1, 2, 4, 1: a step of 16 micro-batches takes 195, and 464 where each has six blocks."""
    costs, speeds = [1.0] * 24 + [3.0], [1, 2, 4, 1]

    def step(ends):
        forward = [sum(costs[a:b]) / v for a, b, v in zip((0, *ends), ends, speeds, strict=False)]
        return simulated(Pipeline(forward, [2.0 * each for each in forward], [0.0] * 3, [0.0] * 3, 16), "1f1b")

    ends = cut(costs, speeds, lambda *_: True)
    assert ends == (3, 10, 24, 25)
    assert (step(ends), step((6, 12, 18, 25))) == pytest.approx((195, 464), abs=1)


def worlds(seed):
    """Lines between six machines, and the rate of a crew of three: its slowest line decides."""
    draw = random.Random(seed)
    line = {pair: draw.uniform(1.0, 10.0) for pair in itertools.combinations(range(6), 2)}
    speed = [draw.uniform(1.0, 3.0) for _ in range(6)]

    def near(a, b):
        return line[min(a, b), max(a, b)]

    def rate(crew):
        return 1.0 / (max(map(near, crew, crew[1:])) + 3.0 / min(speed[each] for each in crew))

    return near, rate


@pytest.mark.parametrize("seed", range(30))
def test_of_six_machines_no_two_crews_are_better(seed):
    near, rate = worlds(seed)
    found = place(range(6), 3, rate, near)
    assert sorted(itertools.chain(*found)) == list(range(6))
    splits = ((one, tuple({*range(6)} - {*one})) for one in itertools.combinations(range(6), 3))
    best = max(sum(max(map(rate, itertools.permutations(crew))) for crew in both) for both in splits)
    assert sum(map(rate, found)) == pytest.approx(best)


def test_who_is_left_over_is_the_worst_and_crews_that_cannot_train_are_none():
    near, rate = worlds(1)
    found = place(range(5), 3, rate, near)
    (crew,) = found
    best = max(rate(each) for each in itertools.permutations(range(5), 3))
    assert rate(crew) == pytest.approx(best)
    assert place(range(6), 3, lambda _crew: 0.0, near) == []
    assert place(range(2), 3, rate, near) == []
