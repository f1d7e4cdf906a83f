"""SybilWall: the gain of records from others over FoolsGold."""

import math

import pytest
import torch

from benchmarks.research.sybilwall import combine
from benchmarks.research.sybilwall import weights as wall
from starling.gossip.rng import generator
from starling.robust.rules.foolsgold import similarity, weights


def histories(count, size, *labels):
    return torch.randn(count, size, generator=generator(0, "foolsgold", *labels))


def test_sybilwall_finds_a_single_clone_by_records_of_others_and_is_foolsgold_without_records():
    """With less than one attack edge per honest node, a node alone sees one clone, which is similar to no other peer."""
    clone, honest = histories(1, 200, "clone"), histories(4, 200, "honest")
    asked = torch.cat((honest, clone))
    assert weights(similarity(asked))[4] == 1.0
    alpha = wall(asked, torch.cat((clone, histories(2, 200, "far"))))
    assert alpha.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert torch.equal(wall(asked, torch.zeros(0, 200)), weights(similarity(asked)))


@pytest.mark.parametrize(
    ("received", "present", "weight", "expected"),
    [
        ([[4.0, 1.0], [1.0, 7.0], [9.0, 9.0]], [1, 1, 1], [1.0, 0.5, 0.0], [(1 + 4 + 0.5) / 2.5, (1 + 1 + 3.5) / 2.5]),
        ([[9.0, 9.0]], [1], [0.0], [1.0, 1.0]),
        ([], [], [], [1.0, 1.0]),
        ([[4.0, 4.0], [math.nan, math.inf]], [1, 0], [1.0, 1.0], [2.0, 2.0]),  # an absent peer counts as the own model
    ],
)
def test_the_combination_is_a_weighted_mean_with_weight_1_for_the_own_model(received, present, weight, expected):
    received = torch.tensor(received).reshape(-1, 2)
    mixed = combine(torch.ones(2), received, torch.tensor(present, dtype=torch.bool), torch.tensor(weight))
    assert mixed.tolist() == pytest.approx(expected)
