"""The model for a late joiner is that of a consistent majority; differing honest models are not blamed."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.robust.model_agreement import _CHUNK, APART, NEAR, SAME, agree, are_nearer
from tests.strategies import examples

D = 200


def normal(*labels) -> torch.Tensor:
    return torch.randn(D, generator=generator(7, *labels))


def swarm(honest: int, way: float, spread: float, *, start: float = 1.0):
    origin, direction = normal("origin"), normal("direction")
    origin, direction = origin * (start / origin.norm()), direction * (way / direction.norm())
    own = [normal("own", i) for i in range(honest)]
    return origin, [origin + direction + each * (spread / math.sqrt(2) / each.norm()) for each in own]


LIES = {
    "turned around": lambda model, origin: -model,
    "made ten times larger": lambda model, origin: 10.0 * model,
    "as large as numbers are": lambda model, origin: torch.full_like(model, 3e38),
    "made up": lambda model, origin: 5.0 * model.norm() * normal("lie") / normal("lie").norm(),
    "turned back": lambda model, origin: origin - 2.0 * (model - origin),
    "moved far by a trigger": lambda model, origin: model + 3.0 * (model - origin).norm() * torch.eye(D)[0],
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("honest", [2, 3, 4])
@pytest.mark.parametrize("start", [0.0, 1.0, 5.0])
def test_one_poisoned_model_is_left_out_and_its_sender_blamed(lie, honest, start):
    origin, models = swarm(honest, 1.0, 0.05, start=start)
    poisoned = LIES[lie](models[0], origin)
    for place in range(honest + 1):
        offered = [*models[:place], poisoned, *models[place:]]
        agreed = agree(offered, origin, [10] * len(offered))
        assert agreed.outside == (place,)
        assert place not in agreed.cluster
        assert agreed.state is not None
        assert all((agreed.state - model).norm() <= 0.06 for model in models)


@pytest.mark.parametrize("spread", [0.0, 0.001, 0.01, 0.1])
@pytest.mark.parametrize("factor", [1.0, 3.0, 10.0])
def test_ten_times_the_usual_distance_is_not_blamed(spread, factor):
    origin, models = swarm(4, 1.0, spread)
    far = models[3] + factor * max(spread, 0.01) * normal("far") / normal("far").norm()
    for offered in ([*models[:2], far], [*models[:3], far]):
        agreed = agree(offered, origin, [10] * len(offered))
        assert agreed.outside == ()
        assert agreed.state is not None


def test_models_trained_separately_are_not_blamed():
    origin = normal("origin")
    ways = torch.linalg.qr(torch.randn(D, 3, generator=generator(7, "ways"))).Q.T
    models = [origin + way for way in ways]
    assert agree(models, origin, [9, 9, 9]).outside == ()
    assert agree([models[0], models[0].clone(), models[1]], origin, [9, 9, 9]).outside == ()


def test_a_model_of_a_later_round_may_be_farther_away():
    origin, models = swarm(2, 1.0, 0.01)
    later = origin + 2.8 * (models[0] - origin)
    assert agree([*models, later], origin, [8, 8, 20]).outside == ()
    assert agree([*models, later], origin, [20, 20, 20]).outside == (2,)
    liar = origin - 3.0 * (models[0] - origin)
    assert agree([*models, liar], origin, [8, 8, 2**62]).outside == (2,)


def test_opposite_updates_in_the_first_rounds_are_not_blamed():
    origin, models = swarm(2, 1.0, 0.001)
    opposite = origin - 1.0 * (models[0] - origin)
    for at, outside in ((1, ()), (7, ()), (8, (2,))):
        agreed = agree([*models, opposite], origin, [at, at, at])
        assert agreed.outside == outside
        assert agreed.cluster == (0, 1)


@examples(80)
@given(
    count=st.integers(3, 7),
    seed=st.integers(0, 2**31),
    spread=st.floats(0.0, 0.05),
    far=st.floats(0.0, 100.0),
    rounds=st.integers(1, 10**6),
)
def test_a_lying_minority_neither_moves_the_state_far_nor_incriminates_honest_peers(count, seed, spread, far, rounds):
    origin, models = swarm(count - (count - 1) // 2, 1.0, spread)
    draw = generator(seed, "lies")
    lies = [
        models[0] + far * torch.rand((), generator=draw) * torch.nn.functional.normalize(torch.randn(D, generator=draw), dim=0)
        for _ in range((count - 1) // 2)
    ]
    offered = [*models, *lies]
    agreed = agree(offered, origin, [rounds] * len(models) + [1] * len(lies))
    diameter = max(float((a - b).norm()) for a in models for b in models)
    assert not set(agreed.outside) & set(range(len(models)))
    assert agreed.state is not None
    reach = max((1 + NEAR) * diameter, diameter + 2.0 * SAME)
    bound = diameter + math.sqrt(count) * reach
    assert all(float((agreed.state - model).norm()) <= bound + 1e-4 for model in models)


def test_two_contradicting_reports_are_both_ignored():
    origin, (model, other) = swarm(2, 1.0, 0.05)
    assert agree([model, other], origin, [9, 9]).cluster == (0, 1)
    for lie in LIES.values():
        agreed = agree([model, lie(model, origin)], origin, [9, 9])
        assert (agreed.state, agreed.cluster, agreed.outside) == (None, (), ())
    assert agree([model, -5.0 * model, 9.0 * model], origin, [9, 9, 9]).state is None


@pytest.mark.parametrize(("way", "agreed"), [(1e-4, True), (1e-2, False)])
def test_models_that_have_hardly_changed_agree_in_any_direction(way, agreed):
    """Codec errors exceed the steps of a small initial learning rate; of three models at maximal distance none is close."""
    origin, _ = swarm(1, way=0.0, spread=1.0)
    one, other = torch.eye(D)[:2]
    models = [origin + way * (math.cos(angle) * one + math.sin(angle) * other) for angle in (0.0, math.tau / 3, -math.tau / 3)]
    assert (agree(models, origin, [9, 9, 9]).state is not None) == agreed


def test_the_state_is_the_coordinate_median_of_agreeing_models():
    origin, models = swarm(3, 1.0, 0.05)
    agreed = agree(models, origin, [9, 9, 9])
    assert torch.equal(agreed.state, torch.stack(models).median(0).values)
    pair = agree(models[:2], origin, [9, 9])
    assert torch.allclose(pair.state, torch.stack(models[:2]).mean(0), atol=1e-7)
    alone = agree(models[:1], origin, [9])
    assert torch.equal(alone.state, models[0])
    start = agree([origin.clone(), origin.clone(), origin.clone()], origin, [0, 0, 0])
    assert torch.equal(start.state, origin)
    assert start.outside == ()


@examples(30)
@given(count=st.integers(1, 6), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_inputs_are_not_modified_and_the_result_is_not_a_view(count, dtype):
    origin, models = swarm(count, 1.0, 0.05)
    origin, models = origin.to(dtype), [model.to(dtype) for model in models]
    before = [each.clone() for each in (origin, *models)]
    agreed = agree(models, origin, [3] * count)
    assume(agreed.state is not None)
    assert agreed.state.dtype == dtype
    agreed.state.zero_()
    assert all(torch.equal(one, other) for one, other in zip(before, (origin, *models), strict=True))


def test_distances_are_right_for_several_chunks():
    origin = torch.zeros(400_000)
    models = [torch.ones(400_000), torch.ones(400_000), torch.ones(400_000)]
    models[2][-1] = 2000.0
    agreed = agree(models, origin, [9, 9, 9])
    assert agreed.outside == (2,)
    assert torch.equal(agreed.state, models[0])
    assert APART * math.sqrt(400_000) < 1999.0


def test_models_are_read_a_part_at_a_time_from_front_to_back_twice():
    """Parts already read need not stay in memory: the test overwrites them."""
    origin = torch.zeros(600_000)
    models, behind = [torch.ones(600_000) for _ in range(3)], 0

    def spoil():
        nonlocal behind
        for model in models:
            model[: behind % 3 * _CHUNK] = math.nan
        behind += 1
        if behind % 3 == 0:
            for model in models:
                model.fill_(1.0)

    agreed = agree(models, origin, [9, 9, 9], spoil)
    assert behind == 6
    assert torch.equal(agreed.state, torch.ones(600_000))


def test_invalid_input_is_refused():
    origin = torch.zeros(3)
    for models, rounds in (([], []), ([torch.zeros(2)], [1]), ([torch.zeros(3)], [1, 2])):
        with pytest.raises(ValueError, match="models must be"):
            agree(models, origin, rounds)


@pytest.mark.parametrize(("own", "nearer"), [(0.0, True), (9.0, True), (9.5, False), (10.4, False), (13.0, True)])
def test_models_are_nearer_to_each_other_than_to_our_own(own, nearer):
    one, other, ours = (torch.full((3,), at) for at in (10.0, 11.0, own))
    assert are_nearer([one, other], ours) == nearer
    assert are_nearer([one], ours)
