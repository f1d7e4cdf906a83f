"""A node whose task differs from the creator's is told in one line what differs."""

import copy
import hashlib
import sys

import pytest
import torch
from msgspec import structs
from torch import nn

import starling
from starling.gossip.errors import ConfigError
from starling.node import run_directory
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.schema import FINGERPRINT_CHARACTERS, FINGERPRINT_LINES, Manifest, NodeConfig
from starling.node.engine import fingerprint
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import open_request, refused_as


class Net(nn.Module):
    def __init__(self, width=16, *, frozen=False, dtype=torch.float32, names=("inner", "outer")):
        super().__init__()
        for name, shape in zip(names, ((3, width), (width, 2)), strict=True):
            self.add_module(name, nn.Linear(*shape, dtype=dtype))
        self.get_parameter(f"{names[1]}.bias").requires_grad_(not frozen)


def mae(output, target):
    return (output - target).abs().mean()


def made(net=Net, **changed):
    x = torch.ones(20, 3)
    return starling.task(**{"model": net, "train": (x, x[:, :2]), "loss": nn.functional.mse_loss, "metrics": mae, **changed})


def lines_of(task):
    return fingerprint.of(task, task.model(torch.Generator().manual_seed(1)))


def compared(task, swarm):
    manifest = toml.apply_set(Manifest(), ["task=tasks:made"])
    manifest = structs.replace(manifest, task=manifest.task.changed(fingerprint=swarm))
    fingerprint.check(manifest, task, task.model(torch.Generator().manual_seed(2)))


def test_a_fingerprint_is_a_few_lines_of_text():
    facts = ("version 3", "metric mae, higher is better", "loss mse_loss")
    tensors = (
        "float32 trained 16x3 inner.weight",
        "float32 trained 16 inner.bias",
        "float32 trained 2x16 outer.weight",
        "float32 trained 2 outer.bias",
    )
    digest = hashlib.blake2b("\n".join(tensors).encode(), digest_size=16).hexdigest()
    assert lines_of(made(version=3)) == (*facts, f"model 98 4 {digest}", *tensors)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"net": lambda: Net(8)}, "inner.weight has shape (8, 3), the swarm's has (16, 3)"),
        ({"net": lambda: Net(frozen=True)}, "outer.bias is frozen, the swarm's is trained"),
        ({"net": lambda: Net(dtype=torch.float64)}, "inner.weight has dtype float64, the swarm's has float32"),
        ({"net": lambda: Net(names=("inner", "other"))}, "the model has no outer.weight, the swarm's has"),
        ({"net": lambda: Net(names=("outer", "inner"))}, "inner.weight has shape (2, 16), the swarm's has (16, 3)"),
        ({"net": lambda: nn.ModuleDict({**dict(Net().named_children()), "tail": nn.Linear(1, 1)})}, "has tail.weight, the swarm's has not"),
        ({"net": lambda: nn.ModuleDict(reversed(list(Net().named_children())))}, "stand in another order"),
        ({"version": "2"}, "its version is 2, the swarm's is 1"),
        ({"version": ""}, "its version is not given, the swarm's is 1"),
        ({"higher_is_better": False}, "its metric is mae, lower is better, the swarm's is mae, higher is better"),
        ({"metrics": "accuracy"}, "its metric is accuracy, higher is better, the swarm's is mae"),
        ({"loss": nn.L1Loss()}, "its loss is L1Loss, the swarm's is mse_loss"),
    ],
)
def test_differences_are_reported_in_one_line(changed, words):
    swarm = lines_of(made(version=1))
    compared(made(version=1), swarm)
    with pytest.raises(ConfigError) as caught:
        compared(made(**{"version": 1, **changed}), swarm)
    said = str(caught.value)
    assert words in said
    assert said.startswith("task.kind: 'tasks:made' is not what this swarm was created with: ")
    assert said.endswith("; ask the creator for its tasks, then `starling run`")
    assert "\n" not in said


class Based(nn.Module):
    """A trained head on a frozen base; `other` names a base parameter with different values."""

    def __init__(self, other="", base=nn.Linear):
        super().__init__()
        self.base, self.head = base(16, 32).requires_grad_(False), nn.Linear(32, 2)
        for name, each in self.named_parameters():
            each.data = torch.arange(each.numel(), dtype=each.dtype).view(each.shape)
            each.data.view(-1)[-1:] += name == other


def created(net, **task):
    """Return the fingerprint as `starling create` writes it."""
    manifest = toml.apply_set(Manifest(), ["task=tasks:made", *(f"task.{key}={value}" for key, value in task.items())])
    made_model = net()
    manifest = structs.replace(
        manifest,
        task=manifest.task.changed(
            fingerprint=fingerprint.of(made(net), made_model, frozen=fingerprint.compares_base(manifest, made_model))
        ),
    )
    manifests.check(manifest)
    return manifest


def test_a_different_base_is_reported_in_one_line_and_a_different_start_is_not():
    """Members that train a head on different frozen values cannot share it."""
    swarm = created(Based)
    fingerprint.check(swarm, made(Based), Based())
    fingerprint.check(swarm, made(Based), Based("head.weight"))
    for other in ("base.weight", "base.bias"):
        with pytest.raises(ConfigError, match=r"its frozen parameters have other values than the swarm's, .*any_base") as caught:
            fingerprint.check(swarm, made(Based), Based(other))
        assert "\n" not in str(caught.value)


def test_a_key_allows_different_bases():
    swarm = created(Based, any_base="true")
    fingerprint.check(swarm, made(Based), Based("base.weight"))
    assert not any(line.startswith("frozen") for line in swarm.task.fingerprint)


def test_a_base_from_the_initial_file_is_not_compared():
    """Every node fills its model from the same file, whose digest is in the manifest."""
    swarm = created(Based, start="sha256:" + "0" * 64)
    fingerprint.check(swarm, made(Based), Based("base.weight"))


class Whole(nn.Linear):
    """A layer with a frozen parameter of integers, as in packed bases."""

    def __init__(self, *shape):
        super().__init__(*shape)
        self.weight = nn.Parameter(self.weight.data.to(torch.int8), requires_grad=False)


def test_a_packed_base_is_compared_whatever_the_start_file_gives():
    """Files of such a model contain only its trained parameters."""
    swarm = created(lambda: Based(base=Whole), start="sha256:" + "0" * 64)
    with pytest.raises(ConfigError, match="frozen parameters have other values"):
        fingerprint.check(swarm, made(Based), Based("base.weight", base=Whole))


@pytest.mark.parametrize("form", ["transposed", "bfloat16", "scalar", "empty"])
def test_frozen_values_of_any_form_have_a_digest(form):
    values = {
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "bfloat16": torch.ones(3).bfloat16(),
        "scalar": torch.tensor(1.0),
        "empty": torch.zeros(0),
    }[form]
    same, more = (nn.ParameterDict({"a": nn.Parameter(each, requires_grad=False)}) for each in (values.clone(), values + 1))
    assert fingerprint.base(same) == fingerprint.base(copy.deepcopy(same))
    assert (fingerprint.base(same) == fingerprint.base(more)) == (form == "empty")


def test_a_large_base_is_hashed_in_blocks(monkeypatch):
    """Every value and the order of the blocks change the digest."""
    monkeypatch.setattr(fingerprint, "_BLOCK", 16)
    made_of = [nn.ParameterDict({"a": nn.Parameter(torch.arange(40.0), requires_grad=False)}) for _ in range(4)]
    made_of[1]["a"].data[39] = 0
    made_of[2]["a"].data[:] = torch.cat((torch.arange(4.0, 8), torch.arange(4.0), torch.arange(8.0, 40)))
    digests = [fingerprint.base(each) for each in made_of]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


def layers(count, last=4):
    return lambda: nn.ModuleList(nn.Linear(1, last if number == count - 1 else 2) for number in range(count))


def test_a_deep_model_s_fingerprint_is_shortened_with_a_digest():
    swarm = lines_of(made(layers(300)))
    assert len(swarm) == FINGERPRINT_LINES
    compared(made(layers(300)), swarm)
    with pytest.raises(ConfigError, match="has 1,206 numbers in 600 tensors, the swarm's 1,204 in 600;"):
        compared(made(layers(300, 5)), swarm)
    other = [*swarm[:2], swarm[2][:-1] + ("0" if swarm[2][-1] != "0" else "1"), *swarm[3:]]
    with pytest.raises(ConfigError, match="a tensor after the first 197 has another name, shape, dtype or order"):
        compared(made(layers(300)), other)


def test_a_fingerprint_fits_into_a_manifest_for_any_module_names():
    def odd():
        return nn.ModuleDict({f"é\n{'n' * 150}{number}": nn.Linear(1, 1) for number in range(300)})

    swarm = lines_of(made(odd))
    assert all(line.isascii() and line.isprintable() and len(line) <= FINGERPRINT_CHARACTERS for line in swarm)
    manifest = toml.apply_set(Manifest(), ["task=tasks:made"])
    manifest = structs.replace(manifest, task=manifest.task.changed(fingerprint=swarm))
    assert len(manifests.to_bytes(manifest)) < manifests.MAX_BYTES // 2
    assert toml.convert(toml.parse(toml.to_toml(manifest)), Manifest) == manifest
    compared(made(odd), swarm)


@pytest.mark.parametrize("lines", [("what is this",), ("metric a",), ("model 1 2 \x1b[2J",)])
def test_invalid_fingerprint_lines_are_refused(lines):
    with pytest.raises(ConfigError, match=r"task\.fingerprint: "):
        compared(made(), lines)


MODULE = """
import torch
from torch import nn
import starling

print("noise")

def net() -> starling.Task:
    x = torch.ones(40, 3)
    return starling.task(model=lambda: nn.Linear(3, {width}), train=(x, x[:, :1]), loss=nn.functional.l1_loss)
"""


@pytest.mark.acceptance
@pytest.mark.slow
def test_creation_writes_the_fingerprint_and_a_node_with_another_model_does_not_open(here):
    name = "fingerprinted_task"
    (here / f"{name}.py").write_text(MODULE.format(width=1))
    wanted = toml.apply_set(Manifest(), [f"task={name}:net", "partition=iid"])
    place, _ = run_directory.create(here / "n", wanted, NodeConfig(trust=True))
    created = place.read_manifest()
    assert created.task.fingerprint[-2:] == ("float32 trained 1x3 weight", "float32 trained 1 bias")
    call = structs.replace(open_request(created), code=str(here))
    assert isinstance(Worker().handle(call), calls.Opened)
    (here / f"{name}.py").write_text(MODULE.format(width=12))
    del sys.modules[name]
    refused_as("config", Worker().handle(call), "weight has shape (12, 3), the swarm's has (1, 3); ask the creator")
    (here / f"{name}.py").write_text("import starling\ndef net() -> starling.Task:\n    raise OSError('no weights')\n")
    with pytest.raises(ConfigError, match=rf"task\.kind: '{name}:net'.*no weights.*line 3") as caught:
        run_directory.create(here / "m", created, NodeConfig(trust=True))
    assert "\n" not in str(caught.value)
    assert not (here / "m").exists()


def test_built_in_tasks_need_no_fingerprint(tmp_path):
    place, _ = run_directory.create(tmp_path / "n", Manifest(), NodeConfig())
    assert place.read_manifest().task.fingerprint == ()
