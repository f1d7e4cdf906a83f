"""Corrections of sgd that count as far as the latest gradients confirm them.

    local step  τ = clamp(4·D/Q, 0, 1), 1 while Q <= P/10⁴;  the optimiser steps along g − τ·c;
                D <- .7·D + .3·⟨g, c⟩;  Q <- .7·Q + .3·‖c‖²;  P <- .7·P + .3·‖g‖²
    exchange    each end sends τ̄, the mean of its τ since the last one;  s = min(τ̄_i, τ̄_j)
                c_ij <- (1 − ½(1 − s))·c_ij + s·G·v,  at both ends from the same numbers

f_i − ⟨c, x⟩ is unbounded below where f_i is flat: there g is nearly 0 and x runs along c. With the true difference δ of gradients and
β = ⟨δ, c⟩/‖c‖², ‖δ − τc‖ <= ‖δ‖ for τ up to 2β. A quarter of c's length in g is enough to count in full, since a mini-batch of few
labels is short at the end of a round. What does not count must not grow: so the gain shrinks by s, and a flow is forgotten by half of
what s leaves out.

τ is that of the step before, so that the products and the correction are one pass over g and c. A c that is next to nothing beside g counts
in full: with s = 0 a flow is halved and never turned, so one that points against g would stay so for ever.

A liar can claim 1, which leaves an edge as it is without this rule, or 0, which makes it plain averaging. Whatever peers send, Q·τ <= 4·D:
what all flows together add is at most four times our own gradient's component along them, or a hundredth of its length, on average over
some three steps.

Numbers are those of `starling.gossip.mix.rows`.

Shapes: "…" as in `starling.gossip.api`; d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.rows import ONE, Number, Rows, blocks, numbers, rows_of, written

ENOUGH = 4.0  # times the share of c that gradients show counts
REMEMBERED = 0.7  # share of D and Q that a local step keeps: about three steps
FORGOTTEN = 0.5  # share of a flow that an exchange removes if nothing of it is confirmed
NEGLIGIBLE = 0.01  # times the length of gradients: a correction no longer than that counts in full
ROUNDING = 1e-7  # times the length of the gradient: a correction no longer than that is what sums of flows leave, and none
_LEAST = 1e-300  # smallest divisor Q
BEGINNING = 1 << 10  # coordinates that are checked first: existing flows are mostly visible in them


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of a node's flows, with the numbers of its confirmation."""

    c: Tensor  # (…, d)
    known: Tensor  # (…, n) the numbers of `Borne`


class Borne(NamedTuple):
    """Numbers that describe how far gradients confirm a correction c."""

    some: Number = 0.0  # 0: there was never a flow, so that c is zero; else 1
    squared: Number = 0.0  # ‖c‖²
    dot: Number = 0.0  # D
    norm: Number = 0.0  # Q
    power: Number = 0.0  # P, over local steps with flows
    sum: Number = 0.0  # sum of τ over the local steps since the last exchange
    steps: Number = 0.0  # how many
    sum_published: Number = 0.0  # the part of it from steps before the shared vector was published
    steps_published: Number = 0.0
    mean: Number = 1.0  # τ̄ of the local steps before the last published vector


_SQUARED, _MEAN = 1, len(Borne()) - 1


def counted(rows: Rows, known: Borne) -> Number:
    """Return τ, the share in [0, 1] of c that counts."""
    share = ENOUGH * known.dot / rows.at_least(known.norm, _LEAST)
    counts = rows.at_most(rows.at_least(share, 0.0), 1.0)
    return rows.pick(known.norm > NEGLIGIBLE * NEGLIGIBLE * known.power, counts, 1.0)


def kept(s: Number) -> Number:
    """Return the share, in [½, 1], of a flow that an exchange keeps, given what both ends bear out, s in [0, 1]."""
    return 1.0 - FORGOTTEN * (1.0 - s)


def sent(state: Total) -> Tensor:
    """Return (…, 1) float64, the τ̄ in [0, 1] that a node sends; 1 before its first local step."""
    return state.known[..., _MEAN:]


def _flowing(known: Tensor, flows: Tensor) -> Tensor:
    """Return numbers (…, n), the first of which says whether any of the flows (…, d) is nonzero; for an array, per row."""
    nothing = flows.dim() == 1 and not bool(flows[:BEGINNING].any()) and not bool(flows.any())
    known = known.clone()
    known[..., 0] = 0.0 if nothing else 1.0
    return known


def start(x: Tensor) -> Total:
    """Return no correction."""
    known = numbers(x, len(Borne()))
    known[..., _MEAN] = 1.0
    return Total(torch.zeros_like(x), known)


def correct(state: Total, gradient: Tensor) -> tuple[Tensor, Total]:
    """Return g − τc, and the state that has seen g."""
    return correct_in_place(state, gradient.clone(), rows_of(gradient))


def correct_in_place(state: Total, gradient: Tensor, rows: Rows) -> tuple[Tensor, Total]:
    """Return the corrected gradient in place of g. Non-finite products are left out."""
    known = subtract(Borne(*rows.read(state.known)), state.c, gradient, rows)
    return gradient, Total(state.c, written(known, state.known))


def subtract(known: Borne, total: Tensor, gradient: Tensor, rows: Rows = ONE) -> Borne:
    """Subtract τ·c from a gradient g (…, d) in place; return the updated numbers. Non-finite products are left out of them."""
    dot, norm, power, share = 0.0, 0.0, 0.0, counted(rows, known)
    if rows.any(known.some):
        taken = torch.as_tensor(share, dtype=gradient.dtype, device=gradient.device)
        for g, c in blocks(gradient, total):
            dot += rows.number(torch.linalg.vecdot(g, c))
            power += rows.number(torch.linalg.vecdot(g, g))
            g.addcmul_(c, taken, value=-1.0)
        finite = rows.finite(dot + power)
        dot, power = (rows.pick(finite, *each) for each in ((dot, known.dot), (power, known.power)))
        some = known.squared > ROUNDING * ROUNDING * power  # in an array some rows may have no flows
        dot, norm, power = (rows.pick(some, each, 0.0) for each in (dot, known.squared, power))
    return known._replace(
        dot=REMEMBERED * known.dot + (1.0 - REMEMBERED) * dot,
        norm=REMEMBERED * known.norm + (1.0 - REMEMBERED) * norm,
        power=REMEMBERED * known.power + (1.0 - REMEMBERED) * power,
        sum=known.sum + share,
        steps=known.steps + 1.0,
    )


def corrected(state: Total, flows: Tensor) -> Total:
    """Return the state with this sum of flows."""
    known, rows, squared = _flowing(state.known, flows), rows_of(flows), 0.0
    if rows.any(rows.read(known)[0]):
        for (c,) in blocks(flows):
            squared += rows.number(torch.linalg.vecdot(c, c))
    known[..., _SQUARED : _SQUARED + 1] = squared
    return Total(flows, known)


def merged(local: Borne, base: Borne, other: Borne) -> Borne:
    """Return the numbers of two ends that went on from the same ones: local steps were done at one, exchanges at the other.

    Args:
        local: of the end with the local steps, now.
        base: what both had.
        other: of the end with the exchanges, now.
    """
    return other._replace(
        dot=local.dot,
        norm=local.norm,
        power=local.power,
        sum=other.sum + local.sum - base.sum,
        steps=other.steps + local.steps - base.steps,
    )


def published(state: Total) -> Total:
    """Return the state after the shared vector was published: τ̄ is of the steps before."""
    rows = rows_of(state.c)
    known = Borne(*rows.read(state.known))
    mean = rows.at_most(rows.at_least(known.sum / rows.at_least(known.steps, 1.0), 0.0), 1.0)
    after = known._replace(sum_published=known.sum, steps_published=known.steps, mean=rows.pick(known.steps > 0.0, mean, known.mean))
    return replace(state, known=written(after, state.known))


def mixed(state: Total) -> Total:
    """Return the state after the exchanges of a published vector: counters of steps restart."""
    known = Borne(*rows_of(state.c).read(state.known))
    after = known._replace(
        sum=known.sum - known.sum_published,
        steps=known.steps - known.steps_published,
        sum_published=0.0 * known.sum,
        steps_published=0.0 * known.steps,
    )
    return replace(state, known=written(after, state.known))
