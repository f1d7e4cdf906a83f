"""A local step's part in drift tracking for one long vector: `drift.observe` and `drift.corrected` in one pass, in memory that is there.

Every operation is on a block that stays in a core's cache, so a gradient is read from memory once. Sums over coordinates are rounded
otherwise than there, and noise is taken from the mean square before that is rounded.

Shapes: d parameters, w of a block.
"""

from dataclasses import replace

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix import confirmed, drift
from starling.gossip.mix.confirmed import LEAST, REMEMBERED
from starling.gossip.mix.drift import Gradients
from starling.gossip.vector import stretches

BLOCK = 1 << 16  # coordinates of five vectors and two of scratch are in a cache of 2 MB


def correct(state: Gradients, gradient: Tensor, limit: float) -> tuple[Tensor, Gradients]:
    """The raw gradient (d,) less the correction as far as it is to be trusted, in its place, and the state that has seen it.

    The state's mean and power change in place: nobody else may use them.
    """
    fresh = bool(state.used)
    before = 0.0 if fresh else float(state.count)
    state = replace(
        state, count=torch.full_like(state.count, before + 1.0), used=torch.zeros_like(state.used),
        averaged=state.count if fresh else state.averaged, spread=torch.zeros_like(state.spread) if fresh else state.spread,
    )  # fmt: skip
    judged = bool(state.power.shape[-1])
    share = float(drift.trust(state)) if judged else 1.0
    held = limit * limit / max(1.0, float(state.averaged))  # of a mean square, against the square of a correction
    scratch = torch.empty((2, min(BLOCK, gradient.shape[-1])), dtype=gradient.dtype, device=gradient.device)
    spread, dot, norm_squared, coincidence = (torch.zeros_like(state.spread) for _ in range(4))
    for part, _ in stretches(slice(None), gradient.shape[-1], BLOCK):
        g, mean, c = gradient[part], state.mean[part], state.c[part]
        one, two = scratch[:, : g.shape[0]]
        if fresh:
            mean.copy_(g)
        else:
            delta = torch.sub(g, mean, out=one)
            spread += torch.dot(delta, delta)
            torch.sub(g, delta.mul_(before / (before + 1.0)), out=mean)
        if not judged:
            g.sub_(c)
            continue
        noise = _power(state.power[part], g, one, two).mul_(held)
        square = torch.mul(c, c, out=one)
        e = square.div_(noise.add_(square).clamp_min_(LEAST)).mul_(c)
        dot += torch.dot(g, e)
        norm_squared += torch.dot(e, e)
        rest = torch.sub(mean, e, out=two).mul_(e)
        coincidence += torch.dot(rest, rest)
        if share:
            g.sub_(e, alpha=share)
    state = replace(state, spread=state.spread + spread * (before / (before + 1.0)))
    if judged:
        state = confirmed.compared(state, dot, norm_squared, coincidence=coincidence)
    return gradient, state


def _power(power: Tensor, g: Tensor, one: Tensor, two: Tensor) -> Tensor:
    """The running mean of g² (w,) with one more gradient, in `power`, and not rounded in `two`; `one` is overwritten."""
    square, old = torch.mul(g, g, out=one), two.copy_(power)
    first = old == 0.0
    moved = old.mul_(REMEMBERED).add_(square, alpha=1.0 - REMEMBERED)
    torch.where(first, square, moved, out=moved)
    power.copy_(moved)
    return moved
