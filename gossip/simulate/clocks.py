"""How long rounds take: virtual seconds per node, by arithmetic on what was computed and sent.

Shapes: N rows, m meetings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gossip.simulate.meetings import Meetings
from gossip.simulate.swarm import Done

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pace:
    """What nodes and links can do. Each (N,) float64.

    Args:
        step_s: seconds of a local step, > 0.
        latency_s: seconds a message of this node is under way to anybody, beyond its bytes, >= 0; of a link the mean of both ends.
        up_bytes_per_s: > 0; inf: unlimited. A link has the lesser of the sender's up and the receiver's down, shared by the exchanges
            that each has in the round.
        down_bytes_per_s: likewise.
    """

    step_s: Seconds
    latency_s: Seconds
    up_bytes_per_s: Seconds
    down_bytes_per_s: Seconds


@dataclass(slots=True)
class Clocks:
    """Virtual time of each node in steps pace.

    Args:
        pace: what nodes and links can do.
        min_wait_s: least deadline of a round.
        max_wait_s: longest.
        frame_bytes: what each message costs beyond its payload.
    """

    pace: Pace
    min_wait_s: float = 0.5
    max_wait_s: float = 30.0
    frame_bytes: int = 64
    now_s: Seconds = field(init=False)
    """(N,) when each node ended its last round."""
    up_bytes: NDArray[np.int64] = field(init=False)
    """(N,) sent so far."""
    down_bytes: NDArray[np.int64] = field(init=False)
    """(N,) received so far."""

    def begin(
        self, steps: int, alive: NDArray[np.bool_], meetings: Meetings
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A round begins -> local steps (N,) that each row does in it, and (m,) meetings that are too late for one end."""
        raise NotImplementedError

    def end(self, meetings: Meetings, done: Done) -> None:
        """The exchanges took their time: clocks and bytes move on."""
        raise NotImplementedError

    def joined(self, row: int, source: int) -> None:
        """A node came: its clock is that of the row it took its model from, and the time of the transfer."""
        raise NotImplementedError
