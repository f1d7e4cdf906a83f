"""What peers are called on the screen: one label for each, distinct from all others shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from starling.node.status import format as show
from starling.tui.source import Reading


def labels_of(readings: Sequence[Reading]) -> Mapping[str, str]:
    """Peer id -> label: the name of its node where that is attached, else the end of its id; no two are equal."""
    texts: dict[str, str] = {}
    snapshots = [(reading.name, reading.snapshot) for reading in readings if reading.snapshot is not None]
    for name, snapshot in snapshots:
        texts.setdefault(snapshot.peer, name or snapshot.peer)
    for _, snapshot in snapshots:
        mentioned = (
            *(peer.peer for peer in snapshot.peers), *(peer.inviter for peer in snapshot.peers), *snapshot.ranks,
            *(each.peer for each in snapshot.transactions), *(each.peer for each in snapshot.transfers),
        )  # fmt: skip
        texts.update({peer: peer for peer in mentioned if peer and peer not in texts})
    return _labels(tuple(texts.items()))


@lru_cache(maxsize=4)
def _labels(texts: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Once for all polls that show the same peers."""
    return show.labels(dict(texts))
