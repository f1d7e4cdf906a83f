"""Rules for networks in memory: partitions and slow peers."""

from math import inf

from starling.node.net.faults import DEFAULT_DELAY_S, Deliver, Drop


def partition(groups, start_s=-inf, end_s=inf):
    """From `start_s` until before `end_s` no frame passes between different groups."""
    group_of = {peer: index for index, group in enumerate(groups) for peer in group}

    def rule(src, dst, now):
        return Drop() if group_of[src] != group_of[dst] and start_s <= now < end_s else None

    return rule


def slow(peer, bytes_per_s, after_s=DEFAULT_DELAY_S):
    """Every link of this peer carries `bytes_per_s` in each direction."""
    return lambda src, dst, _now: Deliver(after_s, bytes_per_s) if peer in (src, dst) else None
