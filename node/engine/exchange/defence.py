"""Defences against distant models: by `starling.robust.distances`, or none; chosen once."""

from typing import Protocol

from starling.gossip.exchange.calls import Far
from starling.node.engine.exchange.api import Vectors
from starling.robust.distances import Distances


class Defence(Protocol):
    """Judges how far peers' models may be from ours."""

    def reference(self, peer: str) -> float:
        """Return the distance that a peer's next one is compared with, as the wire carries it; 0: none."""

    def met(self, peer: str, distance: float) -> Far | None:
        """Judge the distance of a committed exchange, before any bound -> why it is too far; None: it is not."""


class Undefended:
    """Accepts any distance. Satisfies `Defence`."""

    def reference(self, peer: str) -> float:
        return 0.0

    def met(self, peer: str, distance: float) -> Far | None:
        return None


class ByDistance:
    """Judges by the distances of other peers. Satisfies `Defence`."""

    def __init__(self, distances: Distances, vectors: Vectors) -> None:
        self._distances, self._vectors = distances, vectors

    def reference(self, peer: str) -> float:
        return self._distances.reference(peer, self._vectors.round)

    def met(self, peer: str, distance: float) -> Far | None:
        """Judge a peer by its distance -> why it is too far; None: it is not."""
        return self._distances.met(peer, distance, self._vectors.round)
