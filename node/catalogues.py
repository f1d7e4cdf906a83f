"""Tasks and local optimisers by name. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starling.gossip.catalogue import Catalogue, Entry

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from starling.node.tasks.api import Task

TASKS: Catalogue[Task, None] = Catalogue(
    "task.kind",
    "starling.tasks",
    {
        "digits": Entry("starling.node.tasks.digits:Digits"),
        "images": Entry("starling.node.tasks.images:Images"),
        "quadratic": Entry("starling.node.tasks.quadratic:Quadratic"),
        "diagonal": Entry("starling.node.tasks.diagonal:Diagonal"),
        "logistic": Entry("starling.node.tasks.logistic:Logistic"),
        "text": Entry("starling.node.tasks.text:Text"),
        "synthetic": Entry("starling.node.tasks.synthetic:Synthetic"),
    },
    members=("metric", "higher_is_better", "model", "data", "loss", "score"),
)
OPTIMIZERS: Catalogue[Optimizer, Any] = Catalogue(
    "optimizer.kind",
    "starling.optimizers",
    {
        "sgd": Entry("torch.optim:SGD"),
        "adamw": Entry("torch.optim:AdamW"),
        "adam": Entry("torch.optim:Adam"),
        "nadam": Entry("torch.optim:NAdam"),
        "radam": Entry("torch.optim:RAdam"),
        "adamax": Entry("torch.optim:Adamax"),
        "adagrad": Entry("torch.optim:Adagrad"),
        "adadelta": Entry("torch.optim:Adadelta"),
        "rmsprop": Entry("torch.optim:RMSprop"),
        "rprop": Entry("torch.optim:Rprop"),
        "asgd": Entry("torch.optim:ASGD"),
        "adafactor": Entry("torch.optim:Adafactor"),
    },
    members=("step", "state_dict", "load_state_dict", "add_param_group"),
)
