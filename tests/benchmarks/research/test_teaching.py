"""Teaching across architectures: messages, their use, and the gain over learning alone."""

import itertools
from functools import cache
from statistics import mean

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.research.teaching import certainty, ensemble, published, target, teaching
from starling.gossip.rng import generator
from starling.node.config.schema import PartitionSection
from starling.node.simulate.api import simulate
from starling.node.tasks.api import Source
from starling.node.tasks.networks import mlp
from tests.harness.few_images import TEST, FewImages
from tests.harness.tasks import REAL_DATA
from tests.harness.texts import keys


def test_probabilities_are_sent_in_a_byte_each():
    logits = 3.0 * torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    told = published(logits, 2.0)
    torch.testing.assert_close(told.sum(-1), torch.ones(50))
    assert float((told - torch.softmax(logits / 2.0, -1)).abs().max()) < 0.01
    levels = told * (torch.softmax(logits / 2.0, -1) * 255).round().sum(-1, keepdim=True)
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-3)


def test_predictions_are_weighted_by_certainty():
    sure, lost = torch.eye(4)[1], torch.full((4,), 0.25)
    assert float(certainty(sure)) == pytest.approx(1.0, abs=1e-4)
    assert float(certainty(lost)) == pytest.approx(1e-6, rel=0.1)
    told = torch.stack([sure, lost, lost])[:, None]
    torch.testing.assert_close(target(told)[0], sure, rtol=0, atol=1e-4)
    torch.testing.assert_close(target(told, weighted=False)[0], (sure + 2 * lost) / 3)


@pytest.mark.parametrize(("given", "said"), [({"peers": 2}, "peers must be in"), ({"temperature": 0.5}, "temperature must be in")])
def test_settings_out_of_bounds_are_refused(given, said):
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    with pytest.raises(ValueError, match=said):
        teaching(models, lambda _node, _model: torch.zeros(()), torch.zeros(3, 2), **{"lr": 0.1, "steps": 1, "peers": 1, "seed": 0} | given)


@pytest.mark.slow
def test_a_node_without_data_learns_from_the_other():
    """Architectures differ; the student's own loss is none."""
    chance = torch.Generator().manual_seed(1)
    probes = torch.randn(100, 3, generator=chance)
    teacher, student = nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        teacher.weight.copy_(torch.tensor([[6.0, 0.0, 0.0], [-6.0, 0.0, 0.0]]))
        teacher.bias.zero_()
        for part in student:
            if isinstance(part, nn.Linear):
                part.weight.normal_(0, 0.3, generator=chance)
                part.bias.zero_()

    def loss(node, model):
        return 0.0 * sum(each.sum() for each in model.parameters())

    rounds = teaching([teacher, student], loss, probes, lr=0.2, steps=20, peers=1, seed=0)
    taught = next(itertools.islice(rounds, 4, None))
    fresh = torch.randn(500, 3, generator=chance)
    with torch.no_grad():
        alike = (student(fresh).argmax(1) == (fresh[:, 0] < 0)).float().mean()
    assert float(alike) > 0.9
    assert taught.received == 5 * 100 * 2


WIDTHS, EACH, ROUNDS = (16, 32, 64, 128), 200, 30


@pytest.mark.acceptance
@pytest.mark.skipif(not (REAL_DATA / "mnist").is_dir(), reason=f"no MNIST at {REAL_DATA}")
def test_nodes_of_four_widths_teach_each_other_mnist():
    """8 nodes, 200 images each, Dirichlet .3, 3 peers asked, means of three seeds and partitions; the reference has one of each.

    .524 alone, .716 by plain means of predictions on 500 images, .786 weighted by certainty for 450 kB per node, .841 of 2,000 images;
    measured .476, .778, .817 and .823.
    Models that train alone and vote (HDEE) are `experts`.
    """
    alone, experts, _ = _accuracies(peers=0)
    plain, _, _ = _accuracies(peers=3, weighted=False)
    sure, _, received = _accuracies(peers=3)
    more, _, received_of_more = _accuracies(public=2000, peers=3)
    found = [alone, plain, sure, more]
    assert found == pytest.approx([0.524, 0.716, 0.786, 0.841], abs=0.07), (found, experts)
    assert sure > max(plain, experts) + 0.02, (found, experts)
    assert more > sure, found
    assert min(plain, experts) > alone + 0.12, (found, experts)
    assert received == ROUNDS * 3 * 500 * 10
    assert received_of_more == 4 * received


@pytest.mark.acceptance
@pytest.mark.skipif(not (REAL_DATA / "mnist").is_dir(), reason=f"no MNIST at {REAL_DATA}")
def test_fewer_inputs_teach_less_and_more_peers_hardly_more():
    """100 images, seven peers, and .3 of the weight of others' predictions: .746, .818 and .822, three seeds.

    The reference, one seed: .627, .789 and .775.
    """
    few, _, received = _accuracies(public=100, peers=3)
    all_asked, _, received_of_all = _accuracies(peers=7)
    lighter, _, _ = _accuracies(peers=3, alpha=0.3)
    found = [few, all_asked, lighter]
    assert found[1:] == pytest.approx([0.789, 0.775], abs=0.07), found
    assert 0.627 <= few < min(all_asked, lighter) - 0.03, found
    assert (received, received_of_all) == (ROUNDS * 3 * 100 * 10, ROUNDS * 7 * 500 * 10)


@pytest.mark.acceptance
@pytest.mark.skipif(not (REAL_DATA / "mnist").is_dir(), reason=f"no MNIST at {REAL_DATA}")
def test_pairwise_averages_of_equal_models_are_slightly_worse_than_many_labels():
    """All of 32 units: .807 for 3,054 kB, three seeds and partitions; by labels of 2,000 images it is .823 for 1,800 kB.

    The reference's .839 is its first partition; its script has .778 on the second and .803 on the third.
    """
    runs = simulate(
        task="tests.harness.few_images:FewImages",
        mix="dsgd",
        overlay="random_matching",
        nodes=8,
        rounds=ROUNDS,
        seeds=(0, 1, 2),
        set={
            "task.path": str(REAL_DATA / "mnist"),
            "task.each": EACH,
            **keys(
                "task.hidden=32 task.batch_size=32 partition.alpha=0.3 partition.shards=8 compress.select=full",
                "compress.request=identity compress.response=identity pace.local_steps=20",
            ),
            "pace.evaluate_every": ROUNDS,
            **keys("optimizer.momentum=0 optimizer.lr=0.1 optimizer.schedule=constant mix.clip_norm=0 simulate.sample=0"),
        },
    )
    last = [run.outcome.rows[-1] for run in runs.finished]
    assert sum(row.mean for row in last) / 3 == pytest.approx(mean([0.839, 0.778, 0.803]), abs=0.02), last
    assert last[0].bytes_per_node == pytest.approx(3.054e6, rel=0.01)


@cache
def _scene(seed, public):
    """Return (few samples of each node, probes, test samples and labels)."""
    path, parts = str(REAL_DATA / "mnist"), PartitionSection(kind="dirichlet", alpha=0.3, shards=8)
    few = [FewImages(path, EACH).data(Source(None, parts, node, seed), "cpu") for node in range(8)]
    whole = FewImages(path, 60_000).data(Source(None, PartitionSection(kind="iid", shards=1), 0, seed), "cpu")
    return few, whole.x[:public], *next(whole.held_out(TEST))


def _accuracies(public=500, **asked):
    """Return the means of three seeds of (accuracy of own models, of the ensemble, bytes received)."""
    own, together = [], []
    for seed in range(3):
        few, probes, test_x, test_y = _scene(seed, public)
        models = [mlp(784, WIDTHS[node % 4], 10, generator(seed, "model", node)) for node in range(8)]

        chance = generator(seed, "batches")

        def loss(node, model, few=few, chance=chance):
            x, y = few[node].batch(32, chance)
            return cross_entropy(model(x), y)

        rounds = teaching(models, loss, probes, lr=0.1, steps=20, seed=seed, **asked)
        end = next(itertools.islice(rounds, ROUNDS - 1, None))
        with torch.no_grad():
            own += [float((model(test_x).argmax(1) == test_y).float().mean()) for model in models]
            together.append(float((ensemble(models, test_x).argmax(1) == test_y).float().mean()))
    return sum(own) / len(own), sum(together) / 3, end.received
