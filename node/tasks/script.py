"""The task of a swarm that its members' own scripts train: the engine has parameters only, and computes nothing of a task.

A node or command that requests a model, samples or a loss without the script gets a ConfigError that says so.
"""

from typing import Any, NoReturn

from torch import Generator, Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.tasks import keys
from starling.node.tasks.api import Data, Source


class Script(keys.Script):
    """Satisfies `starling.node.tasks.api.Task` by refusing. Its keys are those of `starling.node.tasks.keys.Script`."""

    __slots__ = ()

    def model(self, generator: Generator) -> nn.Module:
        """Raises ConfigError: the model is the scripts' own."""
        _refuse()

    def data(self, source: Source, device: str) -> Data:
        """Raises ConfigError: samples are the scripts' own."""
        _refuse()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Raises ConfigError: the loss is the scripts' own."""
        _refuse()

    def score(self, model: nn.Module, batch: Any) -> tuple[float, float, int]:
        """Raise ConfigError: scripts evaluate."""
        _refuse()


def _refuse() -> NoReturn:
    raise ConfigError(
        "task.kind: this swarm is trained by its members' own scripts; give it yours with "
        "`starling.Swarm(DIR, INVITE, model=…, optimizer=…)`"
    )
