"""Corrections by differences of models, and how far they are trusted: in full, or as far as later gradients do not refute them.

Of a long vector a fourth is compared in a local step, each block in its turn: comparing takes longer than correcting.

Shapes: "…" as in `starling.gossip.api`; d parameters.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.correction_trust import Compared, Comparison, mean_coincidence, unrefuted_share
from starling.gossip.mix.rows import any_of, blocks, cut, numbers, parts, rows_of

ERRORS = 1.0  # standard errors in favour of a correction (decision 105)


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of a node's flows."""

    c: Tensor  # (…, d)
    some: Tensor  # (…, 1) bool; false: there never was a flow, c is zero


@dataclass(frozen=True, slots=True)
class Judged:
    """The sum of a node's flows, and what later gradients say of it."""

    c: Tensor  # (…, d)
    some: Tensor  # (…, 1) bool, as in `Total`
    seen: Tensor  # (…, 5) `starling.gossip.mix.correction_trust.Compared`


def moved(some: Tensor, flows: Tensor) -> Tensor:
    """Return the `some` of flows (…, d) that were changed: whether any is not zero. Of an array it is true of every row."""
    nothing = flows.dim() == 1 and not bool(flows[:BEGINNING].any()) and not bool(flows.any())
    return torch.zeros_like(some) if nothing else torch.ones_like(some)


BEGINNING = 1 << 10  # coordinates that are looked at first: flows that are there are mostly seen in them


@dataclass(frozen=True, slots=True)
class InFull:
    """Local steps along g − c, whatever gradients say."""

    constant: ClassVar[bool] = True

    def start(self, x: Tensor) -> Total:
        """Return no correction."""
        return Total(torch.zeros_like(x), torch.zeros_like(x[..., :1], dtype=torch.bool))

    def correct(self, state: Total, gradient: Tensor) -> tuple[Tensor, Total]:
        """Return g − c, g itself without flows."""
        return (gradient - state.c if any_of(state.some) else gradient), state

    def correct_in_place(self, state: Total, gradient: Tensor, step: int) -> tuple[Tensor, Total]:
        """Return the same in the place of g."""
        return (gradient.sub_(state.c) if bool(state.some) else gradient), state

    def shift(self, state: Total) -> Tensor | None:
        """Return c, None without flows."""
        return state.c if bool(state.some) else None

    def corrected(self, state: Total, flows: Tensor) -> Total:
        """Return the state with this sum of flows."""
        return Total(flows, moved(state.some, flows))

    def mixed(self, state: Total) -> Total:
        """Return the state."""
        return state


@dataclass(frozen=True, slots=True)
class Refutable:
    """Local steps along g − τc, τ as much of c as earlier gradients leave of it, at least 1 − `most` (decisions 105 and 111)."""

    most: float  # in [0, 1]
    constant: ClassVar[bool] = False

    def start(self, x: Tensor) -> Judged:
        """Return no correction, of which nothing was seen."""
        return Judged(torch.zeros_like(x), torch.zeros_like(x[..., :1], dtype=torch.bool), numbers(x, len(Compared())))

    def correct(self, state: Judged, gradient: Tensor) -> tuple[Tensor, Judged]:
        """Return g − τc, and the state that has compared the two in all blocks."""
        return self._corrected(state, gradient.clone(), None)

    def correct_in_place(self, state: Judged, gradient: Tensor, step: int) -> tuple[Tensor, Judged]:
        """Return the same in the place of g; only blocks whose turn it is are compared, and stand for all. The state stays as it was."""
        return self._corrected(state, gradient, step)

    def _corrected(self, state: Judged, gradient: Tensor, step: int | None) -> tuple[Tensor, Judged]:
        rows = rows_of(gradient)
        seen, comparison, times = Compared(*rows.read(state.seen)), Comparison(rows), 1
        if any_of(state.some):
            taken = -rows.at_least(unrefuted_share(rows, seen, ERRORS, mean_coincidence(rows, seen)), 1.0 - self.most)
            length, due, times = blocks(gradient, step)
            scratch = torch.empty_like(gradient[..., :length])
            for g, c, compares in zip(parts(gradient, length), parts(state.c, length), due, strict=True):
                if compares:
                    comparison.add(g, c, g, cut(scratch, g))
                rows.add(g, c, taken)
        return gradient, Judged(state.c, state.some, rows.written(comparison.after(seen, times), state.seen))

    def corrected(self, state: Judged, flows: Tensor) -> Judged:
        """Return the state with this sum of flows."""
        return replace(state, c=flows, some=moved(state.some, flows))

    def mixed(self, state: Judged) -> Judged:
        """Return the state."""
        return state
