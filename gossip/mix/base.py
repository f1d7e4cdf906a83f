"""Plain averaging of models: DSGD, and the defaults of every other mixing algorithm.

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.api import Averaging, Broadcasting, Gathering, Mixer, Phase, Swapping
from starling.gossip.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True)
class PlainAveraging:
    """x_i + θ·v and x_j − θ·v, without flows. Satisfies `starling.gossip.api.Averaging`."""

    def size(self, shared: int) -> int:
        """Return 0: there is no state per edge."""
        return 0

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """Return 0: there are no flows."""
        return 0.0

    def flow(self, kept: Tensor, moved: Tensor, share: float | Tensor = 1.0) -> Tensor:
        """Return the state unchanged."""
        return kept

    def stored(self, dtype: torch.dtype) -> torch.dtype:
        """Return the same."""
        return dtype

    def borne(self, state: Any) -> Tensor | None:
        """Return None: nothing is corrected."""
        return None


class MixerBase:
    """Average the models after their local steps; no correction, no state. Satisfies `starling.gossip.api.Mixer`."""

    __slots__ = ()
    asynchronous: ClassVar[bool] = False

    @property
    def edge(self) -> Averaging | Swapping | Gathering | Broadcasting:
        """Return plain averaging."""
        return PlainAveraging()

    def start(self, x: Tensor) -> Any:
        """Return None: there is no state."""
        return None

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """Return the gradient itself."""
        return gradient, state

    def publish(self, state: Any, x: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """Return the model unchanged."""
        return x, state

    def shared(self, state: Any, x: Tensor) -> Tensor:
        """Return the model."""
        return x

    def absorb(self, state: Any, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """Return the averaged model."""
        return shared, state

    def corrected(self, state: Any, flows: Tensor) -> Any:
        """Return the state unchanged: there are no flows."""
        return state


@dataclass(frozen=True, slots=True)
class Origin:
    """The model (…, d) at the end of the last round."""

    origin: Tensor


def origin(mixer: Mixer, x: Tensor) -> Tensor:
    """Return the shared vector (…, D) of a node that starts with the model x (…, d): a copy."""
    return mixer.shared(mixer.start(x), x).clone()
