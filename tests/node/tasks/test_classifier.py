"""`starling.task`: a model, a loss and arrays are a task that a node can run."""

import numpy as np
import pytest
import torch
from torch import nn

import starling
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.config.schema import PartitionSection
from starling.node.engine.task_check import check

MODULE = """
import numpy as np
import starling
from torch import nn

def birds() -> starling.Task:
    x = np.random.Generator(np.random.PCG64(1)).normal(size=(200, 4))
    return starling.task(model=lambda: nn.Linear(4, 2), train=(x, (x[:, 0] > 0).astype(int)))
"""


def made(**changed):
    x = np.arange(40, dtype=np.float64).reshape(20, 2)
    return starling.task(**{"model": lambda: nn.Linear(2, 3), "train": (x, np.arange(20) % 3), **changed})


def test_a_node_runs_a_task_of_ten_lines(tmp_path):
    (tmp_path / "my_birds.py").write_text(MODULE)
    findings = check("my_birds:birds", code=str(tmp_path))
    assert [finding.step for finding in findings][-1] == "reload", findings[-1].text
    assert all(finding.fine for finding in findings)


def test_every_node_begins_with_the_same_model_and_torch_s_own_generator_is_left_alone():
    before = torch.random.get_rng_state()
    first, second, other = (made().model(generator(seed, "model")) for seed in (1, 1, 2))
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, other.weight)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_score_counts_right_answers_and_sums_the_loss():
    task, model = made(), nn.Identity()
    output = torch.tensor([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 5.0]])
    labels = torch.tensor([0, 1, 0])
    correct, loss, samples = task.score(model, (output, labels))
    assert (correct, samples) == (2.0, 3)
    assert loss == pytest.approx(3 * float(nn.functional.cross_entropy(output, labels)))


def test_shards_share_the_training_samples_and_the_test_split():
    source = [starling.Source(None, PartitionSection(kind="iid", shards=2), shard, 0) for shard in (0, 1)]
    first, second = (made(test=(np.ones((4, 2)), np.zeros(4, int))).data(each, "cpu") for each in source)
    assert first.samples + second.samples == 20
    assert [len(y) for _, y in first.held_out(8)] == [4]


@pytest.mark.parametrize("y", [np.ones(20), np.ones((20, 1), int), np.ones(19, int)])
def test_labels_that_are_none_are_refused(y):
    with pytest.raises(ConfigError, match="train: needs"):
        made(train=(np.ones((20, 2)), y))
