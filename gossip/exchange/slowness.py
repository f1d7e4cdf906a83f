"""Detect edges that became slow. Each is compared with its own past, never with other edges: volunteers' lines differ, and a slow line is
no fault.

Of each edge and kind (sending a payload, in seconds a byte; waiting for an answer, in seconds) the logarithms of OLD past values are
compared with those of the NEW last:

    rise = median(new) − median(old);   σ = max(1.4826 MAD(old), LEAST_SIGMA) · √(1.57 (1/NEW + 1/OLD))
    hot:   rise > max(3 σ, ln 1.5),     and the new values are of consequence, FELT_S or more

While an edge is hot its past stands still; after NORMAL windows it is what is usual now. An edge is named after HOT_EDGE hot windows in a
row; where 60 % of the edges, three at least, are hot for HOT_NODE windows it is what they share that is named. What is named is shown and
never acted on.

Source: C4, Dong et al. 2024 (arXiv:2406.04594), which compares equal machines in one window. Without I/O or clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from starling.gossip.limits import keep

Kind = Literal["send", "answer"]
KINDS: tuple[Kind, ...] = ("send", "answer")
OLD, NEW = 24, 8
LEAST_SIGMA, SIGMAS, LEAST_RISE = 0.15, 3.0, math.log(1.5)
FELT_S = 0.25
HOT_NODE, HOT_EDGE, NORMAL = 2, 3, 12  # windows
EDGES, MOST = 3, 0.6  # fewest edges, and the share of them, that must have become slow
MAX_EDGES = 256


@dataclass(frozen=True, slots=True)
class Named:
    """A slowdown: of this node's link or of all answers (`peer` is ""), or those of one peer."""

    kind: Kind
    peer: str
    times: float  # factor by which it is slower than before
    edges: tuple[int, int] = (1, 1)  # (slow edges, all edges)


@dataclass(slots=True)
class _Past:
    old: deque[float] = field(default_factory=lambda: deque(maxlen=OLD))
    new: list[float] = field(default_factory=list)
    felt: list[float] = field(default_factory=list)  # seconds of the samples in the new window
    hot: int = 0
    rise: float = 0.0

    def add(self, value: float, seconds: float) -> bool:
        """Add a sample -> whether a window is complete, so that a change may be reported again."""
        self.new.append(value)
        self.felt.append(seconds)
        if len(self.new) < NEW:
            return False
        if len(self.old) == OLD and self._is_hot() and self.hot < NORMAL:
            self.hot += 1
        else:
            if self.hot == NORMAL:
                self.old.clear()
            self.hot = 0
            self.old.extend(self.new)
        self.new.clear()
        self.felt.clear()
        return True

    def _is_hot(self) -> bool:
        middle = median(self.old)
        mad = median(abs(value - middle) for value in self.old)
        sigma = max(1.4826 * mad, LEAST_SIGMA) * math.sqrt(1.57 * (1 / NEW + 1 / OLD))
        self.rise = median(self.new) - middle
        return self.rise > max(SIGMAS * sigma, LEAST_RISE) and median(self.felt) >= FELT_S


@dataclass(slots=True)
class Slowness:
    """Detects slow edges by their own past."""

    _pasts: dict[tuple[Kind, str], _Past] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the number of measured edges, for each kind."""
        return len(self._pasts)

    def sent(self, peer: str, count: int, seconds: float) -> bool:
        """Record that the network took a payload of `count` > 0 bytes within so many seconds, > 0 -> whether `named` may have changed."""
        assert count > 0 < seconds < math.inf
        return self._of("send", peer).add(math.log(seconds / count), seconds)

    def answered(self, peer: str, seconds: float) -> bool:
        """Record that a peer answered so many seconds after the request, > 0 -> whether `named` may have changed."""
        assert 0 < seconds < math.inf
        return self._of("answer", peer).add(math.log(seconds), seconds)

    def named(self) -> tuple[Named, ...]:
        """Return the edges that became slower."""
        found: list[Named] = []
        for kind in KINDS:
            pasts = {peer: past for (each, peer), past in self._pasts.items() if each == kind and len(past.old) == OLD}
            hot = {peer: past for peer, past in pasts.items() if past.hot >= HOT_NODE}
            if len(hot) >= max(EDGES, MOST * len(pasts)):
                times = math.exp(median(past.rise for past in hot.values()))
                found.append(Named(kind, "", times, (len(hot), len(pasts))))
            else:
                found += [Named(kind, peer, math.exp(it.rise)) for peer, it in hot.items() if it.hot >= HOT_EDGE]
        return tuple(found)

    def forget(self, peer: str) -> None:
        """Delete the samples of a peer that is gone or restarted."""
        for kind in KINDS:
            self._pasts.pop((kind, peer), None)

    def capped(self) -> None:
        """Delete the samples of sending: the owner changed the cap of this node's line."""
        self._pasts = {key: past for key, past in self._pasts.items() if key[0] != "send"}

    def _of(self, kind: Kind, peer: str) -> _Past:
        past = self._pasts.get((kind, peer))
        if past is None:
            past = _Past()
            keep(self._pasts, (kind, peer), past, 2 * MAX_EDGES)
        return past
