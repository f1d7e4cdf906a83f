"""Map between the state of torch's optimisers and the shared vector.

They keep it by parameter, under names of their own; nodes share one vector, perhaps a part of the model, perhaps with buffers behind it
that no optimiser knows.

Shapes: t parameters, D numbers of the shared vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from starling.gossip.api import Mixer
from starling.gossip.mix.memories import Decay
from starling.gossip.mix.personal import Personal
from starling.gossip.spans import Spans, take
from starling.node.engine.flat_optimizer import Optimizer
from starling.node.engine.moments import SCALES

MEANS = ("exp_avg", "momentum_buffer")
SQUARE = "exp_avg_sq"
AGE = "step"
KNOWN = frozenset({*MEANS, SQUARE, AGE})
"""Names of the averaged tensors in the state of torch's optimisers."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A parameter of an optimiser: its place in the vector (t,), the names of its state, and how fast the state decays."""

    where: slice
    mean: str
    square: str | None
    decay: Decay


def pieces_of(optimizer: Optimizer) -> tuple[Piece, ...]:
    """Return the pieces of an optimiser's state; none: it has none, or one with unknown names."""
    names = {name.removesuffix(SCALES) for name in optimizer.template}
    found, start = [], 0
    for prefix, parameter, owner in optimizer.owned:
        where = slice(start, start + parameter.numel())
        start = where.stop
        own = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        mean = next((name for name in MEANS if name in own), None)
        if mean is None or not own <= KNOWN:
            return ()
        group = _group(owner, parameter)
        first, second = group.get("betas", (group.get("momentum"), None))
        square = prefix + SQUARE if SQUARE in own else None
        decay = Decay(where, float(first), None if square is None else float(second))
        found.append(Piece(where, prefix + mean, square, decay))
    return tuple(found)


def _group(owner: torch.optim.Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    for group in owner.param_groups:
        if any(each is parameter for each in group["params"]):
            return group
    return owner.defaults


@dataclass(frozen=True, slots=True)
class View:
    """Map of parameters (t,) into the shared vector: those in `spans`, all if there are none, and `behind` zeros for buffers."""

    spans: Spans = ()
    behind: int = 0

    def shared(self, values: Tensor) -> Tensor:
        """Return (D,), perhaps the values (t,) themselves."""
        part = take(values, self.spans) if self.spans else values
        return torch.nn.functional.pad(part, (0, self.behind)) if self.behind else part

    def own(self, shared: Tensor, where: slice, before: Callable[[], Tensor]) -> Tensor:
        """Return parameters `where`, of a shared vector (D,) and, where they are not shared, of what `before` gives (n,)."""
        if not self.spans:
            return shared[where]
        start, found = 0, before().clone()
        for span in self.spans:
            first, last = max(span.start, where.start), min(span.stop, where.stop)
            if first < last:
                at = start + first - span.start
                found[first - where.start : last - where.start] = shared[at : at + last - first]
            start += span.stop - span.start
        return found

    def decays(self, pieces: Sequence[Decay]) -> tuple[Decay, ...]:
        """Return the decays of the shared vector's coordinates, given those of the parameters."""
        found: list[Decay] = []
        whole = self.spans or (slice(0, pieces[-1].where.stop),) if pieces else ()
        for span in whole:
            for each in pieces:
                length = min(span.stop, each.where.stop) - max(span.start, each.where.start)
                if length > 0:
                    start = found[-1].where.stop if found else 0
                    found.append(Decay(slice(start, start + length), each.mean, each.square))
        if self.behind and found:
            start = found[-1].where.stop
            found.append(Decay(slice(start, start + self.behind), found[-1].mean, None))
        return tuple(found)


def view_of(mixer: Mixer, trained: int, dim: int) -> View:
    """Return how a mixing algorithm shares `trained` parameters in vectors (dim,)."""
    spans = mixer.spans if isinstance(mixer, Personal) else ()
    shared = sum(span.stop - span.start for span in spans) if spans else trained
    return View(spans, dim - shared)
