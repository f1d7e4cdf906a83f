"""Estimate from earlier answers when the next is late, for all adaptive deadlines."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median


def late_after(answers: Collection[float], k: float, slack: float) -> float:
    """Median + k · MAD of past answers, in their unit; at least one answer, all >= 0.

    MAD is the median absolute deviation, taken as at least `slack` · median, so that equal answers do not make the next one late.
    Fewer than half of the answers, however long, move neither beyond what the others span.
    """
    middle = median(answers)
    return middle + k * max(median(abs(answer - middle) for answer in answers), slack * middle)
