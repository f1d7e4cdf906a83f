"""Who meets whom in a round, as arrays over rows: an overlay laid over those alive.

Shapes: N rows, n of them alive, m meetings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gossip.overlay.api import Overlay


@dataclass(frozen=True, slots=True)
class Meetings:
    """Each pair at most once. Rows are not ranks.

    Args:
        one: (m,) int64, a row.
        other: (m,) int64, the other row.
        forth: (m,) float64, the weight that `one` gives to what it receives from `other`.
        back: (m,) float64, the weight that `other` gives to what it receives from `one`.
    """

    one: NDArray[np.int64]
    other: NDArray[np.int64]
    forth: NDArray[np.float64]
    back: NDArray[np.float64]

    def __len__(self) -> int:
        """How many meetings."""
        return len(self.one)


@dataclass(slots=True)
class Schedule:
    """An overlay's meetings, round by round; remembers those that come again.

    Args:
        overlay: which.
        peers: (N) peer id of each row.
        salt: of the ranks, as in `gossip.overlay.ranks.ranked`.
    """

    overlay: Overlay
    peers: Sequence[str]
    salt: bytes
    _order: NDArray[np.int64] = field(init=False)

    def at(self, round: int, alive: NDArray[np.bool_]) -> Meetings:
        """The meetings of a round among the rows `alive` (N,).

        Both weights of a pair are those of the overlay's matrix, 0 where a direction is missing, as
        `gossip.overlay.links.links` sees them.

        Raises:
            ValueError: the overlay's kind is undefined for so many members.
        """
        raise NotImplementedError
