"""This round's links of one node: whom it exchanges with, and with which mixing weight.

Exchanges are pairwise and antisymmetric, so a link has one weight for both ends: theta_ij = (W_ij + W_ji)/2. A round of
them applies I + Σ theta_ij (e_i − e_j)(e_j − e_i)ᵀ over the links, which is (W + Wᵀ)/2 and keeps the average for any
doubly stochastic W.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starling.gossip.overlay.api import Circulant, Overlay


def links(overlay: Overlay, ranked: Sequence[str], me: str, round: int) -> tuple[tuple[str, float], ...]:
    """(peer, theta) for every link of `me`, sorted by peer id; both ends compute the same bits.

    Args:
        overlay: which.
        ranked: members in rank order (`starling.gossip.overlay.ranks.ranked`).
        me: this node. It has no links while it is not a member.
        round: >= 0.

    Raises:
        ValueError: the overlay's kind is undefined for so many members.
    """
    if me not in ranked:
        return ()
    n = len(ranked)
    rank = ranked.index(me)
    weights = overlay.row(rank, n, round)
    if not overlay.symmetric:
        column = _column(overlay, rank, n, round)
        both = weights.keys() | column.keys()
        weights = {j: (weights.get(j, 0.0) + column.get(j, 0.0)) / 2.0 for j in both}
    return tuple(sorted((ranked[j], theta) for j, theta in weights.items()))


def directions(overlay: Overlay, ranked: Sequence[str], me: str, round: int) -> dict[str, tuple[float, float]]:
    """{peer: (weight it gives to what we send, weight we give to what it sends)} for every link of `me`. Arguments as in `links`."""
    if me not in ranked:
        return {}
    n = len(ranked)
    rank = ranked.index(me)
    row = overlay.row(rank, n, round)
    column = row if overlay.symmetric else _column(overlay, rank, n, round)
    return {ranked[j]: (column.get(j, 0.0), row.get(j, 0.0)) for j in row.keys() | column.keys()}


def _column(overlay: Overlay, rank: int, n: int, round: int) -> Mapping[int, float]:
    """{j: weight that j gives to rank}. Mirrored shifts where the overlay is circulant, else every row is asked."""
    if isinstance(overlay, Circulant):
        return {(rank - shift) % n: weight for shift, weight in overlay.shifts(n, round).items()}
    rows = ((j, overlay.row(j, n, round)) for j in range(n))
    return {j: row[rank] for j, row in rows if rank in row}
