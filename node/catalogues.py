"""Tasks, local optimisers, partitions of data, paces and trainers by name, and the keys of those that are built in. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from starling.gossip.bounds import NonNegative, Positive, ShareBelowOne
from starling.gossip.catalogue import Catalogue, Entry
from starling.gossip.errors import ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from starling.node.daemon.training.local_work import Role
    from starling.node.daemon.training.paces import Pace
    from starling.node.engine.local.task_trainer import TaskTrainer
    from starling.node.rpc.calls import Open
    from starling.node.tasks.api import Task

_HERE = "starling.node.catalogues"
Decay = Literal["all", "matrices"]
"""Which parameters `weight_decay` is for: with matrices none of fewer than two dimensions, as biases and norms are."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """Keys of torch.optim.SGD.

    Args:
        momentum: in [0, 1).
        weight_decay: times the parameters, added to the gradient.
        nesterov: look ahead; needs momentum.
        decay: which parameters weight_decay is for: all, or matrices alone, so neither biases nor norms.
    """

    momentum: ShareBelowOne = 0.9
    weight_decay: NonNegative = 0.0
    nesterov: bool = False
    decay: Decay = "all"

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov must be false without momentum, got true")


@dataclass(frozen=True, slots=True)
class Adam:
    """Keys of torch.optim.Adam and its family.

    Args:
        weight_decay: times the parameters, added to the gradient. adamw: times lr, the share of them that a step takes away.
        beta_1: memory of the mean gradient.
        beta_2: memory of the mean square.
        eps: added to the root of the mean square.
        decay: which parameters weight_decay is for: all, or matrices alone, so neither biases nor norms.
    """

    weight_decay: NonNegative = 0.0
    beta_1: ShareBelowOne = 0.9
    beta_2: ShareBelowOne = 0.999
    eps: Positive = 1e-8
    decay: Decay = "all"


@dataclass(frozen=True, slots=True)
class Adagrad:
    """Keys of torch.optim.Adagrad.

    Args:
        lr_decay: lr is divided by 1 + lr_decay · steps.
        weight_decay: times the parameters, added to the gradient.
        initial_accumulator_value: of the sum of squares.
        eps: added to the root of the sum of squares.
        decay: which parameters weight_decay is for: all, or matrices alone, so neither biases nor norms.
    """

    lr_decay: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    initial_accumulator_value: NonNegative = 0.0
    eps: Positive = 1e-10
    decay: Decay = "all"


@dataclass(frozen=True, slots=True)
class Adadelta:
    """Keys of torch.optim.Adadelta.

    Args:
        rho: memory of the mean squares.
        eps: added to both mean squares.
        weight_decay: times the parameters, added to the gradient.
        decay: which parameters weight_decay is for: all, or matrices alone, so neither biases nor norms.
    """

    rho: ShareBelowOne = 0.9
    eps: Positive = 1e-6
    weight_decay: NonNegative = 0.0
    decay: Decay = "all"


@dataclass(frozen=True, slots=True)
class RmsProp:
    """Keys of torch.optim.RMSprop.

    Args:
        alpha: memory of the mean square.
        eps: added to the root of the mean square.
        weight_decay: times the parameters, added to the gradient.
        momentum: in [0, 1).
        centered: divide by the root of the variance instead.
        decay: which parameters weight_decay is for: all, or matrices alone, so neither biases nor norms.
    """

    alpha: ShareBelowOne = 0.99
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    momentum: ShareBelowOne = 0.0
    centered: bool = False
    decay: Decay = "all"


@dataclass(frozen=True, slots=True)
class Asgd:
    """Keys of torch.optim.ASGD.

    Args:
        lambd: decay of the parameters.
        alpha: power of the decay of lr.
        t0: step from which on parameters are averaged.
        weight_decay: times the parameters, added to the gradient.
        decay: which parameters weight_decay is for: all, or matrices alone, so neither biases nor norms.
    """

    lambd: NonNegative = 1e-4
    alpha: NonNegative = 0.75
    t0: NonNegative = 1e6
    weight_decay: NonNegative = 0.0
    decay: Decay = "all"


@dataclass(frozen=True, slots=True)
class Adafactor:
    """Keys of torch.optim.Adafactor.

    Args:
        beta2_decay: power of the step, <= 0, by which the memory of the mean square grows.
        d: largest root mean square of a step, in units of lr.
        weight_decay: the share of the parameters that a step takes away, times lr.
        decay: which parameters weight_decay is for: all, or matrices alone, so neither biases nor norms.
    """

    beta2_decay: Annotated[float, Meta(ge=-10, le=0)] = -0.8
    d: Annotated[float, Meta(ge=1, le=1e6)] = 1.0
    weight_decay: NonNegative = 0.0
    decay: Decay = "all"


@dataclass(frozen=True, slots=True)
class Muon:
    """Keys of torch.optim.Muon, which steps the hidden matrices of a model, and of AdamW, which steps all else, at the same rate.

    Args:
        momentum: in [0, 1).
        nesterov: look ahead.
        ns_steps: Newton-Schulz steps that make the momentum of a matrix orthogonal.
        weight_decay: times lr, the share of the parameters that a step takes away.
        beta_1: AdamW's memory of the mean gradient.
        beta_2: AdamW's memory of the mean square.
        eps: AdamW's, added to the root of the mean square.
        decay: which parameters weight_decay is for: all, or matrices alone, so neither biases nor norms.
    """

    momentum: ShareBelowOne = 0.95
    nesterov: bool = True
    ns_steps: Annotated[int, Meta(ge=1, le=20)] = 5
    weight_decay: NonNegative = 0.0
    beta_1: ShareBelowOne = 0.9
    beta_2: ShareBelowOne = 0.999
    eps: Positive = 1e-8
    decay: Decay = "all"


@dataclass(frozen=True, slots=True)
class Dirichlet:
    """Labels in unequal shares.

    Args:
        alpha: concentration; smaller is more different.
    """

    alpha: Annotated[float, Meta(ge=1e-3, le=1e6)] = 0.3


@dataclass(frozen=True, slots=True)
class Steps:
    """Rounds, in which peers wait for each other.

    Args:
        max_wait_s: the adaptive deadline of an exchange never exceeds this.
    """

    max_wait_s: Annotated[float, Meta(ge=0.01, le=3600)] = 10.0


TASKS: Catalogue[Task, None] = Catalogue(
    "task.kind",
    "starling.tasks",
    {
        "digits": Entry("starling.node.tasks.digits:Digits", keys="starling.node.tasks.keys:Digits"),
        "images": Entry("starling.node.tasks.images:Images", keys="starling.node.tasks.keys:Images"),
        "quadratic": Entry("starling.node.tasks.convex:Quadratic", keys="starling.node.tasks.keys:Quadratic"),
        "diagonal": Entry("starling.node.tasks.convex:Diagonal", keys="starling.node.tasks.keys:Diagonal"),
        "logistic": Entry("starling.node.tasks.convex:Logistic", keys="starling.node.tasks.keys:Logistic"),
        "text": Entry("starling.node.tasks.text:Text", keys="starling.node.tasks.keys:Text"),
        "synthetic": Entry("starling.node.tasks.synthetic:Synthetic", keys="starling.node.tasks.keys:Synthetic"),
        "script": Entry("starling.node.tasks.script:Script", keys="starling.node.tasks.keys:Script"),
    },
    members=("metric", "higher_is_better", "model", "data", "loss", "score"),
    heavy=True,
    sparse=True,
)
OPTIMIZERS: Catalogue[Optimizer, Any] = Catalogue(
    "optimizer.kind",
    "starling.optimizers",
    {
        "sgd": Entry("torch.optim:SGD", keys=f"{_HERE}:Sgd"),
        "adamw": Entry("torch.optim:AdamW", keys=f"{_HERE}:Adam"),
        "adam": Entry("torch.optim:Adam", keys=f"{_HERE}:Adam", maturity="experimental"),
        "nadam": Entry("torch.optim:NAdam", keys=f"{_HERE}:Adam", maturity="experimental"),
        "radam": Entry("torch.optim:RAdam", keys=f"{_HERE}:Adam", maturity="experimental"),
        "adamax": Entry("torch.optim:Adamax", keys=f"{_HERE}:Adam", maturity="experimental"),
        "adagrad": Entry("torch.optim:Adagrad", keys=f"{_HERE}:Adagrad", maturity="experimental"),
        "adadelta": Entry("torch.optim:Adadelta", keys=f"{_HERE}:Adadelta", maturity="experimental"),
        "rmsprop": Entry("torch.optim:RMSprop", keys=f"{_HERE}:RmsProp", maturity="experimental"),
        "rprop": Entry("torch.optim:Rprop", keys="builtins:object", maturity="experimental"),
        "asgd": Entry("torch.optim:ASGD", keys=f"{_HERE}:Asgd", maturity="experimental"),
        "adafactor": Entry("torch.optim:Adafactor", keys=f"{_HERE}:Adafactor", maturity="experimental"),
        "muon": Entry("torch.optim:Muon", keys=f"{_HERE}:Muon"),
    },
    members=("step", "state_dict", "load_state_dict", "add_param_group"),
    supplied=("params", "lr"),
    heavy=True,
)
PARTITIONS: Catalogue[Any, None] = Catalogue(
    "partition.kind",
    "",
    {kind: Entry("builtins:object") for kind in ("iid", "by_label", "by_file", "by_key")} | {"dirichlet": Entry(f"{_HERE}:Dirichlet")},
)
PACES: Catalogue[Pace, None] = Catalogue(
    "pace.kind",
    "",
    {
        "steps": Entry("starling.node.daemon.training.paces:steps", keys=f"{_HERE}:Steps"),
        "sampled": Entry(
            "starling.node.extras.sampled.pace:sampled", keys="starling.node.extras.sampled.keys:Sampled", maturity="experimental"
        ),
        "clock": Entry("starling.node.daemon.training.paces:clock", keys="builtins:object"),
    },
)
"""How a node does rounds, from its services."""
WORK: Catalogue[Role, None] = Catalogue(
    "crew.stages",
    "",
    {
        "whole": Entry("starling.node.daemon.training.local_work:whole"),
        "stage": Entry("starling.node.extras.crew.daemon.work:stage", maturity="experimental"),
    },
)
"""Who does a node's local steps, and who is a member beside it."""


@dataclass(frozen=True, slots=True)
class SelectedBy:
    """A setting or call that selects a trainer.

    Args:
        key: of the settings of a swarm or a node; "": it is the one of all others.
        by: whether a call that opens an engine asks for it.
    """

    key: str
    by: Callable[[Open], bool]


TRAINERS: Catalogue[TaskTrainer, SelectedBy] = Catalogue(
    "trainer",
    "",
    {
        "stage": Entry(
            "starling.node.extras.crew.engine.trainer:trainer_of",
            SelectedBy("crew.stages", lambda open_request: open_request.stage >= 0),
            maturity="experimental",
        ),
        "seeds": Entry(
            "starling.node.extras.seeds.trainer:trainer_of",
            SelectedBy("mix.kind", lambda open_request: open_request.manifest.mix.kind == "seeds"),
            maturity="experimental",
        ),
        "island": Entry(
            "starling.node.extras.islands.trainer:trainer_of",
            SelectedBy("ranks", lambda open_request: open_request.ranks > 1),
            maturity="experimental",
        ),
        "gradients": Entry("starling.node.engine.local.trainer_setup:trainer_of", SelectedBy("", lambda _opening: True)),
    },
)
"""What does the local steps of a task: the first that is asked for."""


def trainer(open_request: Open) -> Callable[..., TaskTrainer]:
    """Return what makes the trainer that a call asks for: (opening, CSPRNG, window) -> trainer; it raises ConfigError."""
    return TRAINERS[next(name for name in TRAINERS.built_in if TRAINERS.facts(name).by(open_request))]


def task(kind: str, params: Mapping[str, Any]) -> Task:
    """Return the task that a manifest names; the owner has agreed to import what "module:Class" names (`node.config.consent`).

    Raises ConfigError: unknown kind or parameter, a value out of bounds, or nothing installed here that declares itself a task.
    """
    made = TASKS.build("task", kind, params, trusted=True)
    if missing := [member for member in TASKS.members if not hasattr(made, member)]:
        raise ConfigError(f"task.kind: {kind!r} made a {type(made).__name__} without {', '.join(missing)}")
    return made
