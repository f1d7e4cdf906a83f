"""Tasks, local optimisers and partitions of data by name, and the keys of those that are built in. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starling.gossip.bounds import NonNegative, Positive, ShareBelowOne
from starling.gossip.catalogue import Catalogue, Entry
from starling.gossip.errors import ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from starling.node.tasks.api import Task

_HERE = "starling.node.catalogues"


@dataclass(frozen=True, slots=True)
class Sgd:
    """Keys of torch.optim.SGD.

    Args:
        momentum: in [0, 1).
        weight_decay: times the parameters, added to the gradient.
        nesterov: look ahead; needs momentum.
    """

    momentum: ShareBelowOne = 0.9
    weight_decay: NonNegative = 0.0
    nesterov: bool = False


@dataclass(frozen=True, slots=True)
class Adam:
    """Keys of torch.optim.Adam and its family.

    Args:
        weight_decay: times the parameters, added to the gradient. adamw: times lr, the share of them that a step takes away.
        beta_1: memory of the mean gradient.
        beta_2: memory of the mean square.
        eps: added to the root of the mean square.
    """

    weight_decay: NonNegative = 0.0
    beta_1: ShareBelowOne = 0.9
    beta_2: ShareBelowOne = 0.999
    eps: Positive = 1e-8


@dataclass(frozen=True, slots=True)
class Dirichlet:
    """Labels in unequal shares.

    Args:
        alpha: concentration; smaller is more different.
    """

    alpha: Positive = 0.3


TASKS: Catalogue[Task, None] = Catalogue(
    "task.kind",
    "starling.tasks",
    {
        "digits": Entry("starling.node.tasks.digits:Digits"),
        "images": Entry("starling.node.tasks.images:Images"),
        "quadratic": Entry("starling.node.tasks.convex:Quadratic"),
        "diagonal": Entry("starling.node.tasks.convex:Diagonal"),
        "logistic": Entry("starling.node.tasks.convex:Logistic"),
        "text": Entry("starling.node.tasks.text:Text"),
        "synthetic": Entry("starling.node.tasks.synthetic:Synthetic"),
    },
    members=("metric", "higher_is_better", "model", "data", "loss", "score"),
    heavy=True,
)
OPTIMIZERS: Catalogue[Optimizer, Any] = Catalogue(
    "optimizer.kind",
    "starling.optimizers",
    {
        "sgd": Entry("torch.optim:SGD", keys=f"{_HERE}:Sgd"),
        "adamw": Entry("torch.optim:AdamW", keys=f"{_HERE}:Adam"),
        "adam": Entry("torch.optim:Adam", keys=f"{_HERE}:Adam"),
        "nadam": Entry("torch.optim:NAdam", keys=f"{_HERE}:Adam"),
        "radam": Entry("torch.optim:RAdam", keys=f"{_HERE}:Adam"),
        "adamax": Entry("torch.optim:Adamax"),
        "adagrad": Entry("torch.optim:Adagrad"),
        "adadelta": Entry("torch.optim:Adadelta"),
        "rmsprop": Entry("torch.optim:RMSprop"),
        "rprop": Entry("torch.optim:Rprop"),
        "asgd": Entry("torch.optim:ASGD"),
        "adafactor": Entry("torch.optim:Adafactor"),
    },
    members=("step", "state_dict", "load_state_dict", "add_param_group"),
    supplied=("params", "lr"),
    heavy=True,
)
PARTITIONS: Catalogue[Any, None] = Catalogue(
    "partition.kind",
    "",
    {kind: Entry("builtins:object") for kind in ("iid", "by_label", "by_file", "by_key")}
    | {"dirichlet": Entry(f"{_HERE}:Dirichlet")},
)


def task(kind: str, params: Mapping[str, Any]) -> Task:
    """The task that a manifest names; the owner has agreed to import what "module:Class" names (`node.config.consent`).

    Raises:
        ConfigError: unknown kind or parameter, a value out of bounds, or nothing installed here that declares itself a task.
    """
    made = TASKS.build("task", kind, params, trusted=True)
    if missing := [member for member in TASKS.members if not hasattr(made, member)]:
        raise ConfigError(f"task.kind: {kind!r} made a {type(made).__name__} without {', '.join(missing)}")
    return made
