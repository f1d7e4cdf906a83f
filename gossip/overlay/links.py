"""Links of one node in a round: its partners, and the mixing weight of each exchange.

Exchanges are pairwise and antisymmetric, so a link has one weight for both ends: theta_ij = (W_ij + W_ji)/2. A round of them applies I + Σ
theta_ij (e_i − e_j)(e_j − e_i)ᵀ over the links, which is (W + Wᵀ)/2 and keeps the average for any doubly stochastic W.
"""

from collections.abc import Mapping, Sequence

from starling.gossip.overlay.api import Circulant, Overlay


def links(overlay: Overlay, ranked: Sequence[str], me: str, round: int) -> tuple[tuple[str, float], ...]:
    """Return (peer, theta), for every link of `me`, sorted by peer id; both ends compute the same bits. Arguments as in `directions`."""
    both = directions(overlay, ranked, me, round)
    return tuple(sorted((peer, (give + take) / 2.0) for peer, (give, take) in both.items()))


def directions(overlay: Overlay, ranked: Sequence[str], me: str, round: int) -> dict[str, tuple[float, float]]:
    """Return {peer: (weight of our messages at the peer, weight of its messages here)} for every link of `me`.

    `ranked` are the members in rank order (`starling.gossip.overlay.ranks.ranked`); `me` has no links if it is not one of them.
    Raises ValueError: the overlay's kind is undefined for this number of members.
    """
    if me not in ranked:
        return {}
    n = len(ranked)
    rank = ranked.index(me)
    row = overlay.row(rank, n, round)
    column = row if overlay.symmetric else _column(overlay, rank, n, round)
    return {ranked[j]: (column.get(j, 0.0), row.get(j, 0.0)) for j in row.keys() | column.keys()}


def _column(overlay: Overlay, rank: int, n: int, round: int) -> Mapping[int, float]:
    """{j: weight that j gives to rank}: mirrored shifts where the overlay is circulant, else from all rows."""
    if isinstance(overlay, Circulant):
        return {(rank - shift) % n: weight for shift, weight in overlay.shifts(n, round).items()}
    rows = ((j, overlay.row(j, n, round)) for j in range(n))
    return {j: row[rank] for j, row in rows if rank in row}
