"""Symmetric clipping: bounds what one exchange can move, and never which way.

Shapes: d parameters or k selected coordinates.
"""

import math

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import finite, stretches

_SUMMED = 1 << 18  # numbers whose squares are added up in float32: at worst 1 % too few, were they added one by one
_SURELY = 0.99
_SUMS_HOLD = 1e-9  # lengths far above those whose squares underflow in float32: √d · 1e-19


def clip(v: Tensor, tau: float) -> tuple[Tensor, bool]:
    """Shorten v (d,) to norm tau if it is longer: v · min(1, tau/‖v‖), and whether that changed it; a tau of 0 is off.

    An odd function, to the bit: clip(−v) = −clip(v), so both ends of an edge that use the same tau stay antisymmetric. Clip the decoded
    difference, before it is quantised for the answer; never clip with a tau of one's own, which lets the corrections drift even among
    honest peers. v, float32 or float64, is not modified, and returned itself where it is short enough.

    Raises ValueError: tau is negative or not finite, or v is not finite ("not_finite").
    """
    if not 0.0 <= tau < math.inf:
        raise ValueError(f"tau must be finite and >= 0, got {tau}")
    if v.dtype == torch.float32 and _short(v, tau):
        return v, False
    norm = _norm(v)
    if math.isnan(norm) or (math.isinf(norm) and not finite(v)):
        raise ValueError("not_finite")
    if tau == 0.0 or norm <= tau:
        return v, False
    peak = torch.linalg.vector_norm(v, math.inf)  # squares in float64 may overflow; squares of values divided by this do not
    shrink = tau / _norm(v, peak)
    shortened = torch.empty_like(v)
    for part, _ in stretches(slice(None), v.numel()):
        shortened[part] = v[part].double() / peak * shrink
    return shortened, True


def _short(v: Tensor, tau: float) -> bool:
    """Return whether v (d,) float32 is surely no longer than tau, by float32 sums, which are ten times as fast as float64 ones."""
    if tau < _SUMS_HOLD:
        return tau == 0.0 and finite(v)
    parts = (v[part] for part, _ in stretches(slice(None), v.numel(), _SUMMED))
    return math.hypot(*(float(torch.linalg.vector_norm(part)) for part in parts)) <= tau * _SURELY


def _norm(v: Tensor, unit: Tensor | None = None) -> float:
    """Return the Euclidean norm of v/unit, or of v, in float64, computed in blocks of v (d,)."""
    parts = (v[part].double() for part, _ in stretches(slice(None), v.numel()))
    return math.hypot(*(float(torch.linalg.vector_norm(part if unit is None else part / unit)) for part in parts))
