"""Who gets how much: one option for each layer, so that a budget holds and the rest is best.

A dynamic program over layers and a budget cut into buckets. What an option costs is rounded up to whole buckets, so what comes out
stays within the budget, and is the best there is but for that rounding.

Source: L-GreCo, Alimohammadi et al. 2023, Algorithm 1 (arXiv:2210.17357), which spends error to save bytes (`least_bytes`). A slot on a
slow link is a budget of bytes, so `least_error` is the same program the other way round.

Shapes: L layers, C options of each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BUCKETS = 10_000

Table = npt.NDArray[np.float64]


def least_bytes(errors: Table, sizes: Table, error_budget: float, buckets: int = BUCKETS) -> tuple[int, ...]:
    """The option of each layer with the fewest bytes in all whose errors add up to no more than the budget.

    Args:
        errors: (L, C) >= 0, additive: norms, as in the paper, or their squares.
        sizes: (L, C) bytes >= 0.
        error_budget: > 0.
        buckets: how finely the budget is cut.

    Raises:
        ValueError: shapes or numbers are out of bounds, or not even the least errors fit.
    """
    _check(errors, sizes)
    return _cheapest(errors, sizes, error_budget, buckets)


def least_error(errors: Table, sizes: Table, byte_budget: float, buckets: int = BUCKETS) -> tuple[int, ...]:
    """The option of each layer with the least error in all whose bytes add up to no more than the budget.

    Args:
        errors: (L, C) >= 0, additive.
        sizes: (L, C) bytes >= 0.
        byte_budget: > 0; exact where it is whole, sizes are whole, and it is no more than `buckets`.
        buckets: how finely the budget is cut.

    Raises:
        ValueError: shapes or numbers are out of bounds, or not even the least sizes fit.
    """
    _check(errors, sizes)
    return _cheapest(sizes, errors, byte_budget, buckets)


def _check(errors: Table, sizes: Table) -> None:
    if errors.ndim != 2 or errors.shape != sizes.shape or 0 in errors.shape:
        raise ValueError(f"errors and sizes must be (layers, options), got {errors.shape} and {sizes.shape}")
    for table in (errors, sizes):
        if not (np.isfinite(table).all() and (table >= 0).all()):
            raise ValueError("errors and sizes must be finite and >= 0")


def _cheapest(spent: Table, cost: Table, budget: float, buckets: int) -> tuple[int, ...]:
    """Minimise Σ cost[l, c_l] under Σ spent[l, c_l] <= budget; of equal choices the lowest option."""
    if not 0.0 < budget < np.inf or buckets < 1:
        raise ValueError(f"budget must be > 0 and buckets >= 1, got {budget}, {buckets}")
    if float(budget).is_integer() and budget <= buckets and (spent == np.floor(spent)).all():
        buckets = int(budget)
    units = np.ceil(np.minimum(spent / budget, 2.0) * buckets * (1.0 - 1e-12)).astype(np.int64)
    layers, options = units.shape
    best = np.zeros(buckets + 1)  # of the layers so far, with no more than that many buckets
    chosen = np.full((layers, buckets + 1), -1, np.int32)
    for layer in range(layers):
        following = np.full(buckets + 1, np.inf)
        for option in range(options):
            unit = units[layer, option]
            if unit > buckets:
                continue
            candidate = best[: buckets + 1 - unit] + cost[layer, option]
            better = candidate < following[unit:]
            following[unit:][better] = candidate[better]
            chosen[layer, unit:][better] = option
        best = following
    if not np.isfinite(best[buckets]):
        raise ValueError(
            f"budget must hold at least one option of each layer, {spent.min(1).sum():g} in all, got {budget:g}"
        )
    left, choice = buckets, []
    for layer in reversed(range(layers)):
        option = int(chosen[layer, left])
        choice.append(option)
        left -= int(units[layer, option])
    return tuple(reversed(choice))
