"""`starling.task`: a model, a loss and samples of any form make a task that a node can run."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

import starling
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.engine.task_check import check
from starling.node.tasks.api import DataError
from tests.harness.tasks import built_in, own

MODULES = {
    "labels": """
def made() -> starling.Task:
    x = np.random.Generator(np.random.PCG64(1)).normal(size=(200, 4))
    return starling.task(model=lambda: nn.Linear(4, 2), train=(x, (x[:, 0] > 0).astype(int)))
""",
    "regression": """
def made() -> starling.Task:
    x = np.random.Generator(np.random.PCG64(1)).normal(size=(200, 4))
    return starling.task(model=lambda: nn.Linear(4, 1), train=(x, x @ np.ones(4)), metrics=mae, higher_is_better=False)

def mae(output, target):
    return (output[:, 0] - target).abs().mean()
""",
    "dicts": """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 2)

    def forward(self, ids, mask, label):
        return self.head((self.embed(ids) * mask[..., None]).sum(1))

def made() -> starling.Task:
    ids = np.arange(600).reshape(200, 3) % 9
    data = {"ids": ids, "mask": np.ones((200, 3)), "label": ids[:, 0] % 2}
    loss = lambda output, batch: nn.functional.cross_entropy(output, batch["label"])
    return starling.task(model=Words, train=data, loss=loss)
""",
    "loader": """
class Noisy(torch.utils.data.Dataset):
    targets = [i % 2 for i in range(120)]

    def __len__(self):
        return 120

    def __getitem__(self, i):
        return torch.randn(4) + random.random() + np.random.rand() + 3 * self.targets[i], self.targets[i]

def made() -> starling.Task:
    loader = torch.utils.data.DataLoader(Noisy(), shuffle=True, collate_fn=torch.utils.data.default_collate)
    return starling.task(model=lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1)), train=loader)
""",
}
HEAD = "import random\nimport numpy as np\nimport starling\nimport torch\nfrom torch import nn\n"


@pytest.mark.slow
@pytest.mark.parametrize("form", MODULES)
def test_a_node_runs_a_task_of_ten_lines(form, tmp_path):
    """Batches and scores are equal for an equal generator, also with a randomly augmented Dataset: the check compares them."""
    (tmp_path / f"own_{form}.py").write_text(HEAD + MODULES[form])
    findings = check(f"own_{form}:made", code=str(tmp_path))
    assert [finding.step for finding in findings][-1] == "reload", findings[-1].text
    assert all(finding.fine for finding in findings), findings[-1].text


def made(**changed):
    x = np.arange(40, dtype=np.float64).reshape(20, 2)
    return starling.task(**{"model": lambda: nn.Linear(2, 3), "train": (x, np.arange(20) % 3), **changed})


class Ragged(Dataset):
    """Sample i has i % 3 numbers."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.zeros(1 + i % 3), i % 2


def test_every_node_begins_with_the_same_model_and_torch_s_own_generator_is_left_alone():
    before = torch.random.get_rng_state()
    first, second, other = (made().model(generator(seed, "model")) for seed in (1, 1, 2))
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, other.weight)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_score_counts_correct_predictions_and_sums_the_loss():
    task, model = made(), nn.Identity()
    output = torch.tensor([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 5.0]])
    labels = torch.tensor([0, 1, 0])
    correct, loss, samples = task.score(model, (output, labels))
    assert correct == pytest.approx(2.0)
    assert samples == 3
    assert loss == pytest.approx(3 * float(nn.functional.cross_entropy(output, labels)))


def test_shards_share_the_training_samples_and_the_test_split():
    source = [built_in(shards=2, shard=shard) for shard in (0, 1)]
    first, second = (made(test=(np.ones((4, 2)), np.zeros(4, int))).data(each, "cpu") for each in source)
    assert first.samples + second.samples == 20
    assert [len(y) for _, y in first.held_out(8)] == [4]


def test_shards_contain_every_training_sample_once_and_no_test_sample():
    task = made(train=Subset(TensorDataset(torch.arange(900.0)[:, None], torch.arange(900) % 4), range(400)))
    parts = [task.data(built_in("dirichlet", shards=3, shard=shard), "cpu") for shard in range(3)]
    trained = [int(i) for part in parts for i in part.take(torch.arange(part.samples))[0]]
    tested = [int(i) for x, _ in parts[0].held_out(8) for i in x]
    assert sorted(trained + tested) == list(range(400))
    assert len(tested) == 40
    assert len({part.samples for part in parts}) > 1  # labels exist, so shards are uneven


def test_samples_can_be_partitioned_by_their_owner():
    task = made(keys=np.arange(20) // 5, test=(np.ones((2, 2)), np.zeros(2, int)))
    held = [task.data(built_in("by_key", shards=4, shard=shard), "cpu").samples for shard in range(4)]
    assert held == [5, 5, 5, 5]
    with pytest.raises(ConfigError, match=r"keys: must be 20, one a sample, got shape \(3,\)"):
        made(keys=[1, 2, 3]).data(built_in("by_key"), "cpu")


def test_a_data_function_reads_the_node_s_path(tmp_path):
    def read(path):
        n = 30 if path is None else len(path.read_text())
        return torch.ones(n, 2), torch.zeros(n, 1)

    (tmp_path / "mine.txt").write_text("x" * 50)
    task = made(train=read, metrics=None)
    assert (task.metric, task.higher_is_better) == ("loss", False)
    assert task.data(built_in(), "cpu").samples == 27
    assert task.data(own(tmp_path / "mine.txt"), "cpu").samples == 45
    with pytest.raises(ConfigError, match="data: this task has its own data"):
        made().data(own(tmp_path / "mine.txt"), "cpu")


def test_random_augmentation_follows_the_given_generator():
    class Drawing(Ragged):
        def __getitem__(self, i):
            return torch.randn(2), i

    data = made(train=Drawing()).data(built_in(), "cpu")
    state = torch.random.get_rng_state()
    one, again, other = (data.batch(8, generator(seed, "batch")) for seed in (1, 1, 2))
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train": (np.ones((20, 2)), np.ones(19, int))}, "train: all arrays must have as many rows, got 20, 19"),
        ({"train": ([[1.0], [1.0, 2.0]], [0, 1])}, "train: .*rows"),
        ({"train": (np.array([[1.0], [np.nan]]), np.ones(2, int))}, "train: row 1 holds a number that is not finite"),
        ({"train": np.array(["a"])}, "train: needs arrays of numbers, got <U1"),
        ({"train": (np.ones((0, 2)), np.ones(0, int))}, "train: holds no samples"),
        ({"test": []}, "test: holds no samples"),
        ({"train": type("S", (IterableDataset,), {"__iter__": iter})()}, "train: an IterableDataset cannot be cut"),
        (
            {"train": DataLoader(Ragged(), sampler=WeightedRandomSampler([1.0] * 12, 12))},
            "train: the DataLoader has a sampler of its own, WeightedRandomSampler",
        ),
        ({"model": nn.Linear(2, 3)}, "model: give a function that makes it, e.g. model=lambda: Linear"),
        ({"metrics": {"a": len, "b": 3}}, "metrics: needs functions of"),
        ({"metrics": {}}, "metrics: needs functions of"),
    ],
)
def test_unusable_data_are_refused_in_one_line(changed, said):
    with pytest.raises(DataError if said.startswith(("train", "test")) else ConfigError, match=said) as caught:
        made(**changed)
    assert "\n" not in str(caught.value)


def test_samples_of_different_shapes_are_named():
    with pytest.raises(ConfigError, match=r"train: samples .* cannot be put into a batch"):
        made(train=Ragged()).data(built_in(), "cpu").batch(64, generator(1, "batch"))
