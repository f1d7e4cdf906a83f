"""A byte budget shared out among layers: one option for each, so that the budget holds and the error is least.

A dynamic program over layers and a budget cut into buckets. Sizes are rounded up to whole buckets, so the result stays within the
budget, and is the best there is but for that rounding.

Source: L-GreCo, Alimohammadi et al. 2023, Algorithm 1 (arXiv:2210.17357), which spends error to save bytes; a slot on a slow link
is a budget of bytes, so this is the same program the other way round.

Shapes: L layers, C options of each.
"""

import numpy as np
import numpy.typing as npt

BUCKETS = 10_000
Table = npt.NDArray[np.float64]


def least_error(errors: Table, sizes: Table, byte_budget: float, buckets: int = BUCKETS) -> tuple[int, ...]:
    """Return the option of each layer with the least error in all whose bytes add up to no more than the budget > 0; of equal ones the
    lowest.

    `errors` (L, C) >= 0 are additive, `sizes` (L, C) bytes >= 0. Exact where budget and sizes are whole and it is no more than `buckets`,
    by which it is cut.

    Raises ValueError: shapes or numbers are out of bounds, or not even the least sizes fit.
    """
    if errors.ndim != 2 or errors.shape != sizes.shape or 0 in errors.shape:
        raise ValueError(f"errors and sizes must be (layers, options), got {errors.shape} and {sizes.shape}")
    if not all(np.isfinite(table).all() and (table >= 0).all() for table in (errors, sizes)):
        raise ValueError("errors and sizes must be finite and >= 0")
    if not 0.0 < byte_budget < np.inf or buckets < 1:
        raise ValueError(f"budget must be > 0 and buckets >= 1, got {byte_budget}, {buckets}")
    if float(byte_budget).is_integer() and byte_budget <= buckets and (sizes == np.floor(sizes)).all():
        buckets = int(byte_budget)
    units = np.ceil(np.minimum(sizes / byte_budget, 2.0) * buckets * (1.0 - 1e-12)).astype(np.int64)
    layers, options = units.shape
    best = np.zeros(buckets + 1)  # smallest error of the layers so far with at most that many buckets
    chosen = np.full((layers, buckets + 1), -1, np.int32)
    for layer in range(layers):
        following = np.full(buckets + 1, np.inf)
        for option in range(options):
            unit = units[layer, option]
            if unit > buckets:
                continue
            candidate = best[: buckets + 1 - unit] + errors[layer, option]
            better = candidate < following[unit:]
            following[unit:][better] = candidate[better]
            chosen[layer, unit:][better] = option
        best = following
    if not np.isfinite(best[buckets]):
        raise ValueError(f"budget must hold at least one option of each layer, {sizes.min(1).sum():g} in all, got {byte_budget:g}")
    left, choice = buckets, []
    for layer in reversed(range(layers)):
        option = int(chosen[layer, left])
        choice.append(option)
        left -= int(units[layer, option])
    return tuple(reversed(choice))
