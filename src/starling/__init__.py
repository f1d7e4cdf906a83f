"""Train a PyTorch model together, without a server.

    starling.Swarm            a training loop of one's own as a member of a swarm
    starling.create, join      a node that creates or joins a swarm; with `with` it runs in a child process
    starling.Node, run        the node of a run directory, in the background or to its end
    starling.attach           a running or ended node of this machine: status, evaluate, export, invite
    starling.simulate         a swarm, or a sweep of swarms, simulated on this machine
    starling.Manifest         what a swarm agrees on
    starling.catalogues       names that a manifest can give, by key: list(starling.catalogues["mix.kind"])
    starling.task             a task from a model, a loss and samples
    starling.adapters         tasks from transformers, peft and lightning
    starling.Task             what a learning task must provide

Names are imported on use: `import starling` loads neither torch nor trio. docs/api.md has examples.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starling.gossip.errors import ConfigError, GossipError
    from starling.node.child_node import Node, attach, create, join, run
    from starling.node.config.parts import CATALOGUES as catalogues  # noqa: N811
    from starling.node.config.schema import Manifest
    from starling.node.node_handle import Attached, Evaluation
    from starling.node.script.swarm import Swarm
    from starling.node.simulate.api import simulate
    from starling.node.status.scalars import scalars
    from starling.node.status.snapshot import StatusSnapshot
    from starling.node.tasks import adapters
    from starling.node.tasks.api import Data, Source, Task
    from starling.node.tasks.own import task

__version__: Final = "0.1.0"  # the only place: pyproject.toml, tools and docs read it here

_MODULES = {
    "gossip.errors": ("ConfigError", "GossipError"),
    "node.node_handle": ("Attached", "Evaluation"),
    "node.child_node": ("Node", "attach", "create", "join", "run"),
    "node.config.parts": ("catalogues",),
    "node.config.schema": ("Manifest",),
    "node.script.swarm": ("Swarm",),
    "node.simulate.api": ("simulate",),
    "node.status.scalars": ("scalars",),
    "node.status.snapshot": ("StatusSnapshot",),
    "node.tasks.api": ("Data", "Source", "Task"),
    "node.tasks.own": ("task",),
}
_WHERE = {name: f"starling.{module}" for module, names in _MODULES.items() for name in names}
_RENAMED = {"catalogues": "CATALOGUES"}
_FORMER = {"found": "create"}  # names of an earlier release, which work for one more

__all__ = [
    "Attached",
    "ConfigError",
    "Data",
    "Evaluation",
    "GossipError",
    "Manifest",
    "Node",
    "Source",
    "StatusSnapshot",
    "Swarm",
    "Task",
    "adapters",
    "attach",
    "catalogues",
    "create",
    "join",
    "run",
    "scalars",
    "simulate",
    "task",
]


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        warnings.warn(f"starling.{name} is called starling.{_FORMER[name]} now", DeprecationWarning, stacklevel=2)
        name = _FORMER[name]
    if name == "adapters":
        return importlib.import_module("starling.node.tasks.adapters")
    if name not in _WHERE:
        raise AttributeError(f"module 'starling' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
