"""Examples that papers are known by: games of two players, and BlueFog's tutorials, with small settings."""

import pytest
import torch

from starling.examples.bluefog import tutorials
from starling.examples.games.games import Players, versus
from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config import presets
from starling.node.config.schema import Manifest, OptimizerSection
from starling.node.engine.ahead import optimistic, point
from starling.node.simulate.api import simulate

GAME = {
    "optimizer.lr": 0.1, "optimizer.momentum": 0, "optimizer.schedule": "constant", "mix.clip_norm": 0.0, "compress.select": "full",
    "compress.request": "identity", "compress.response": "identity", "pace.local_steps": 5, "partition.kind": "iid",
}  # fmt: skip


def played(gradient, mix, rounds, nodes=16, seeds=(0, 1, 2), **task):
    """Errors at the end, of each seed."""
    keys = (
        GAME
        | {f"task.{key}": value for key, value in task.items()}
        | {"task.nodes": nodes, "optimizer.gradient": gradient}
    )
    keys |= {"pace.evaluate_every": rounds} | ({"mix.kappa": 0.1} if mix == "pet" else {})
    runs = simulate(
        task="starling.examples.games.games:Bilinear",
        mix=mix,
        overlay="random_matching",
        nodes=nodes,
        rounds=rounds,
        seeds=seeds,
        set=keys,
    )
    return [run.outcome.rows[-1].mean for run in runs.finished]


def test_one_player_descends_and_the_other_ascends():
    model = Players(2)
    torch.nn.init.ones_(model.x)
    versus((model.x * model.y.detach()).sum() + model.x.sum(), minus=(model.x.detach() * model.y).sum()).backward()
    assert model.x.grad.tolist() == [1.0, 1.0]  # y = 0
    assert model.y.grad.tolist() == [-1.0, -1.0]  # so that a step of descent adds


def test_a_point_ahead_is_as_far_as_rho_or_where_a_corrected_step_ends():
    x, g = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near = point(OptimizerSection(sam=0.3), x, g, lambda same: same, 1.0)
    assert torch.allclose((near - x).norm(dim=1), torch.full((3,), 0.3, dtype=torch.float64))
    further = point(OptimizerSection(gradient="extragradient"), x, g, lambda same: same - 1.0, 0.5)
    assert torch.equal(further, x - 0.5 * (g - 1.0))
    assert torch.equal(optimistic(g, None), g)
    assert torch.equal(optimistic(g, x), 2 * g - x)


@pytest.mark.acceptance
def test_plain_steps_circle_and_optimistic_ones_with_corrections_reach_the_saddle():
    size = {"nodes": 4, "size": 3, "mu": 0.1}
    assert max(played("optimistic", "pet", 120, **size)) < 1e-3 < min(played("optimistic", "dsgd", 120, **size))


@pytest.mark.acceptance
def test_the_saddle_of_sixteen_games_is_reached_with_ten_thousand_numbers_a_node():
    """80 numbers a round, three seeds; averages alone stop at a fifth. The reference: 8,080 numbers and 7,680, a floor of .18."""
    assert max(played("optimistic", "pet", 125, mu=0.1)) < 1e-6
    assert max(played("extragradient", "pet", 125, mu=0.1)) < 1e-6
    floor = played("optimistic", "dsgd", 125, mu=0.1)
    assert sum(floor) / 3 == pytest.approx(0.18, abs=0.06)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["optimizer.gradient=optimistic"],
            "optimizer.gradient: optimistic steps are plain steps, for sgd without momentum",
        ),
        (
            ["optimizer.gradient=optimistic", "optimizer.momentum=0", "optimizer.sam=0.1"],
            "optimizer.sam: optimistic looks ahead already",
        ),
        (
            ["optimizer.gradient=extragradient", "optimizer.momentum=0", "mix.kind=gradient_tracking"],
            "optimizer.gradient: extragradient corrects two gradients a step",
        ),
        (["optimizer.sam=2"], "optimizer.sam: must be"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        manifests.check(presets.load(Manifest, assignments=keys))


@pytest.mark.slow
def test_the_tutorial_of_consensus_is_exact_on_one_peer_graphs_and_slow_on_a_ring():
    consensus = tutorials.average_consensus(8, 12)
    assert consensus["one_peer_exponential"] < 1e-20
    assert consensus["ring"] > 1e-4


@pytest.mark.acceptance
def test_the_other_tutorials_show_what_they_are_about():
    for tutorial, exact in (
        (tutorials.gradient_tracking, "gradient_tracking"),
        (tutorials.exact_diffusion, "exact_diffusion"),
    ):
        error = tutorial()
        assert error[exact] < 1e-2 * error["dsgd"]
    pushed = tutorials.push_sum()
    assert 0.5 < pushed["push_sum"] / pushed["dsgd"] < 2.0
