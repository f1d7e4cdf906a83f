"""Defences against models that are distant or behind: by `starling.robust.distances`, or none; chosen once.

Shapes: D numbers of the shared vector.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from starling.gossip.compress.support import Support
from starling.gossip.exchange.calls import Far
from starling.node.engine.exchange.api import Vectors
from starling.robust.distances import Distances
from starling.robust.progress import Along, Beginning


class Defence(Protocol):
    """Judges how far peers' models may be from ours, and behind it."""

    def reference(self, peer: str) -> float:
        """Return the distance that a peer's next one is compared with, as the wire carries it; 0: none."""

    def along(self, support: Support, vector: Tensor) -> Along | None:
        """Return the way of our `vector` (D,) on a support, for a peer's progress along it; None: that is not known."""

    def met(self, peer: str, distance: float, progress: float | None) -> Far | None:
        """Judge the distance of a committed exchange, before any bound, and the peer's progress -> why it counts against it, or None."""

    def restart(self) -> None:
        """Begin with another model of ours."""


class Undefended:
    """Accepts any distance. Satisfies `Defence`."""

    def reference(self, peer: str) -> float:
        return 0.0

    def along(self, support: Support, vector: Tensor) -> Along | None:
        return None

    def met(self, peer: str, distance: float, progress: float | None) -> Far | None:
        return None

    def restart(self) -> None: ...


class ByDistance:
    """Judges by the distances and the progress of other peers. Satisfies `Defence`.

    `begin` notes where our model is now; it returns None where progress cannot be measured.
    """

    def __init__(self, distances: Distances, vectors: Vectors, begin: Callable[[], Beginning | None]) -> None:
        self._distances, self._vectors, self._begin = distances, vectors, begin
        self._began = begin()

    def reference(self, peer: str) -> float:
        return self._distances.reference(peer, self._vectors.round)

    def along(self, support: Support, vector: Tensor) -> Along | None:
        """Return the way since this node began, on coordinates that it drew."""
        return None if self._began is None else self._began.along(support, vector)

    def met(self, peer: str, distance: float, progress: float | None) -> Far | None:
        """Judge a peer by its distance and its progress -> why it counts against it, or None."""
        return self._distances.met(peer, distance, self._vectors.round, progress)

    def restart(self) -> None:
        """Note where the new model is; the progress of peers was along another way."""
        self._began = self._begin()
        self._distances.restart()
