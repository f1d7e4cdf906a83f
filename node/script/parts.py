"""Parts of a script that its node uses: the model, optimisers, and counts of a round.

Shapes: d parameters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from starling.node.script.parameters import Parameters
from starling.node.script.state_copies import Copies


class Life(Protocol):
    """Reports whether the node of a script runs."""

    def check(self) -> None:
        """Raise GossipError: the node has failed, or does not run."""

    def is_over(self) -> bool:
        """Return whether the node has ended in order. Raises GossipError: it has failed."""

    def doing(self) -> str:
        """Return what the node waits for, in a line; "" if that is not known."""


@dataclass(slots=True)
class Parts:
    """Parts of a script that take part in exchanges.

    Args:
        model: what it trains.
        optimizers: the innermost ones.
        evaluate: as of `Swarm`.
        state: likewise.
        copies: likewise.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    evaluate: Callable[[], Any] | None = None
    state: Mapping[str, Any] | None = None
    copies: Copies = ()
    parameters: Parameters = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = Parameters(self.model, self.optimizers, copies=self.copies)


class Tally:
    """Counts the local steps of a round."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.steps = self.losses = 0
        self._sum: Tensor | float = 0.0

    def note(self, loss: Tensor | float | None) -> None:
        """Count a step; its loss is only read by `mean`."""
        self.steps += 1
        if loss is not None:
            self._sum = self._sum + (loss.detach() if isinstance(loss, Tensor) else float(loss))
            self.losses += 1

    @property
    def mean(self) -> float | None:
        """Return the mean loss; None: there was none."""
        return float(self._sum) / self.losses if self.losses else None


def effective_lr(rate: float, optimizers: Sequence[Optimizer]) -> float:
    """Return how far a local step along a unit direction moves a parameter in the long run: with momentum m rate/(1 − m)."""
    momentum = optimizers[0].param_groups[0].get("momentum", 0.0) if isinstance(optimizers[0], torch.optim.SGD) else 0.0
    return rate / (1.0 - momentum) if momentum < 1.0 else rate


def say(line: str) -> None:
    """Tell the owner, on standard error."""
    sys.stderr.write(f"starling: {line}\n")
    sys.stderr.flush()
