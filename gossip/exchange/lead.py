"""How far the swarm is, judged by what peers say of themselves when some may lie."""

from __future__ import annotations

from collections.abc import Collection


def credible_lead(rounds: Collection[int]) -> int:
    """The furthest round that at least one honest peer has reached if fewer than a third of the peers lie; 0 if nobody spoke.

    The (f + 1)-th largest of m rounds with f = ⌊(m − 1)/3⌋: f liars who claim the end of time move nobody.

    Args:
        rounds: the highest round heard of each peer.
    """
    ordered = sorted(rounds, reverse=True)
    return ordered[(len(ordered) - 1) // 3] if ordered else 0
