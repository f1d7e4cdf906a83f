"""Models with buffers behind the parameters: any mixing algorithm of the parameters, and plain averages of the rest.

Shapes: t numbers of parameters and b of buffers, d = t + b; D numbers of the inner algorithm's shared vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starling.gossip.api import Averaging, Broadcasting, CorrectsInPlace, Gathering, Mixer, Phase, Replacing, Swapping
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import Layout


def carrying(mixer: Mixer, layout: Layout) -> Mixer:
    """Return an algorithm for vectors of a layout with buffers, which are averaged plainly.

    For those whose fact in the catalogue is `carries`, but for those that combine vectors by a rule: they treat all numbers alike.
    """
    made = CarriedInPlace if isinstance(mixer, CorrectsInPlace) else Carried
    return made(mixer, layout.trained, layout.dim - layout.trained)


@dataclass(frozen=True, slots=True)
class Carried:
    """`inner`, as if the model had only its first `trained` numbers; exchanges average the rest along with them.

    State and gradients are those of `inner`, (…, t). Flows of the rest are kept with those of the parameters and correct nothing.
    """

    inner: Mixer
    trained: int  # t
    rest: int  # b

    @property
    def edge(self) -> Averaging | Swapping | Gathering | Broadcasting:
        return self.inner.edge

    @property
    def asynchronous(self) -> bool:
        return self.inner.asynchronous

    @property
    def replaces(self) -> bool:
        return isinstance(self.inner, Replacing) and self.inner.replaces

    def start(self, x: Tensor) -> Any:
        return self.inner.start(x[..., : self.trained])

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        return self.inner.correct(state, gradient)

    def publish(self, state: Any, x: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        own = x[..., : self.trained]
        published, state = self.inner.publish(state, own, phase)
        return (x if published is own else self._joined(published, x)), state

    def shared(self, state: Any, x: Tensor) -> Tensor:
        """Return (…, D + b) as `inner`, and the rest."""
        own = x[..., : self.trained]
        shared = self.inner.shared(state, own)
        return x if shared is own else self._joined(shared, x)

    def absorb(self, state: Any, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """Mix the parameters by `inner`; the rest is copied from `shared`."""
        of_inner = shared[..., : shared.shape[-1] - self.rest]
        mixed, state = self.inner.absorb(state, x[..., : self.trained], of_inner, phase)
        if mixed is of_inner:
            return shared, state
        return torch.cat((mixed, shared[..., of_inner.shape[-1] :]), dim=-1), state

    def corrected(self, state: Any, flows: Tensor) -> Any:
        return self.inner.corrected(state, flows[..., : self.trained])

    def _joined(self, own: Tensor, x: Tensor) -> Tensor:
        return torch.cat((own, x[..., self.trained :]), dim=-1)


@dataclass(frozen=True, slots=True)
class CarriedInPlace(Carried):
    """`Carried` for an algorithm that corrects gradients in their memory. Satisfies `starling.gossip.api.CorrectsInPlace`."""

    def correct_in_place(self, state: Any, gradient: Tensor, step: int) -> tuple[Tensor, Any]:
        assert isinstance(self.inner, CorrectsInPlace)
        return self.inner.correct_in_place(state, gradient, step)
