"""Corrections by differences of models, and how far they are trusted: in full, or as far as later gradients do not refute them.

Of a long vector a fourth is compared in a local step, each block in its turn: comparing takes longer than correcting.

Shapes: "…" as in `starling.gossip.api`; d parameters.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.correction_trust import Compared, Products, compared, products, unrefuted_share
from starling.gossip.mix.rows import ONE, Rows, blocks, numbers, rows_of, written

ERRORS = 1.0  # standard errors in favour of a correction (decision 105)
BEGINNING = 1 << 10  # coordinates that are looked at first: flows that are there are mostly seen in them


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of a node's flows, and numbers beside it."""

    c: Tensor  # (…, d)
    known: Tensor  # (…, n): 0 if there never was a flow, c is zero, else 1; then what later gradients say of c (`Compared`), if judged


def corrected(known: Tensor, flows: Tensor) -> Tensor:
    """Return numbers (…, n) of which the first says whether any of the flows (…, d) is not zero; of an array it says so of every row."""
    nothing = flows.dim() == 1 and not bool(flows[:BEGINNING].any()) and not bool(flows.any())
    known = known.clone()
    known[..., 0] = 0.0 if nothing else 1.0
    return known


@dataclass(frozen=True, slots=True)
class InFull:
    """Local steps along g − c, whatever gradients say."""

    constant: ClassVar[bool] = True

    def start(self, x: Tensor) -> Total:
        """Return no correction."""
        return Total(torch.zeros_like(x), numbers(x, 1))

    def correct(self, state: Total, gradient: Tensor) -> tuple[Tensor, Total]:
        """Return g − c, g itself without flows."""
        return (gradient - state.c if bool(state.known.any()) else gradient), state

    def correct_in_place(self, state: Total, gradient: Tensor, step: int) -> tuple[Tensor, Total]:
        """Return the same in the place of g."""
        return (gradient.sub_(state.c) if bool(state.known) else gradient), state

    def shift(self, state: Total) -> Tensor | None:
        """Return c, None without flows."""
        return state.c if bool(state.known) else None

    def corrected(self, state: Total, flows: Tensor) -> Total:
        """Return the state with this sum of flows."""
        return Total(flows, corrected(state.known, flows))

    def mixed(self, state: Total) -> Total:
        """Return the state."""
        return state


@dataclass(frozen=True, slots=True)
class Refutable:
    """Local steps along g − τc, τ as much of c as earlier gradients leave of it, at least 1 − `most` (decisions 105 and 111)."""

    most: float  # in [0, 1]
    constant: ClassVar[bool] = False

    def start(self, x: Tensor) -> Total:
        """Return no correction, of which nothing was seen."""
        return Total(torch.zeros_like(x), numbers(x, 1 + len(Compared())))

    def correct(self, state: Total, gradient: Tensor) -> tuple[Tensor, Total]:
        """Return g − τc, and the state that has compared the two in all blocks."""
        return self.correct_in_place(state, gradient.clone(), None, rows_of(gradient))

    def correct_in_place(
        self, state: Total, gradient: Tensor, step: int | None, rows: Rows = ONE
    ) -> tuple[Tensor, Total]:
        """Return the same in the place of g; only blocks whose turn it is are compared, and stand for all. The state stays as it was.

        `step` None: all are compared.
        """
        some, *known = rows.read(state.known)
        seen, new = Compared(*known), Products()
        if rows.any(some):
            share = rows.at_least(unrefuted_share(rows, seen, ERRORS), 1.0 - self.most)
            taken = torch.as_tensor(share, dtype=gradient.dtype, device=gradient.device)
            for times, (scratch,), (g, c) in blocks(step, 1, gradient, state.c):
                if times:
                    new = products(rows, new, times, g, c, g, scratch)
                g.addcmul_(c, taken, value=-1.0)
        return gradient, Total(state.c, written((some, *compared(rows, seen, new)), state.known))

    def corrected(self, state: Total, flows: Tensor) -> Total:
        """Return the state with this sum of flows."""
        return replace(state, c=flows, known=corrected(state.known, flows))

    def mixed(self, state: Total) -> Total:
        """Return the state."""
        return state
