"""Defences against models that are distant, behind or worse: by `starling.robust.distances`, or none; chosen once.

Shapes: D numbers of the shared vector.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from torch import Tensor

from starling.gossip.api import Effect, Losses
from starling.gossip.compress.support import Support
from starling.gossip.edge_memory import Committed
from starling.gossip.exchange.calls import Far
from starling.gossip.mix.encoded_effects import EncodedEffect, added
from starling.node.engine.exchange.api import Vectors
from starling.robust.distances import Distances
from starling.robust.own_loss import Brought
from starling.robust.progress import Beginning, Made, unknown


@dataclass(frozen=True, slots=True)
class Expected:
    """What the model of a peer is compared with in an exchange."""

    reference: float  # distance, as the wire carries it; 0: none
    made: Made
    credit: Callable[[float | None], float] = lambda _progress: 1.0  # returns the share of a step towards a peer of some progress


class Defence(Protocol):
    """Judges how far peers' models may be from ours, and behind it."""

    def expected(self, peer: str, support: Support, vector: Tensor) -> Expected:
        """Return what a peer's model is compared with in an exchange of our `vector` (D,) on a support."""

    def met(self, peer: str, distance: float, progress: float | None) -> Far | None:
        """Judge the distance of a committed exchange, before any bound, and the peer's progress -> why it counts against it, or None."""

    def restart(self) -> None:
        """Begin with another model of ours."""


class Undefended:
    """Accepts any distance. Satisfies `Defence`."""

    def expected(self, peer: str, support: Support, vector: Tensor) -> Expected:
        return Expected(0.0, unknown)

    def met(self, peer: str, distance: float, progress: float | None) -> Far | None:
        return None

    def restart(self) -> None: ...


class ByDistance:
    """Judges by the distances, the progress and the losses of other peers. Satisfies `Defence`.

    `begin` notes where our model is now, `losses` are on our data; None: they are not known.
    """

    def __init__(self, distances: Distances, vectors: Vectors, begin: Callable[[], Beginning], losses: Losses | None) -> None:
        self._distances, self._vectors, self._begin, self._losses = distances, vectors, begin, losses
        self._began = begin()

    def expected(self, peer: str, support: Support, vector: Tensor) -> Expected:
        """Return the other peers' distance, and what measures progress since this node began."""
        now = self._vectors.round
        credit = partial(self._distances.credit, peer, now)
        return Expected(self._distances.reference(peer, now), self._began.along(support, vector), credit)

    def met(self, peer: str, distance: float, progress: float | None) -> Far | None:
        """Judge a peer by its distance and its progress -> why it counts against it, or None."""
        return self._distances.met(peer, distance, self._vectors.round, progress)

    def examine(self, own: Tensor, committed: Sequence[Committed]) -> None:
        """Compare the models that exchanges brought with ours (D,), as far as their values were exchanged."""

        def brought(done: Committed) -> Brought:
            return done.peer, lambda: added(own, cast("Effect | EncodedEffect", done))  # nothing else is defended

        self._distances.losses.compare(map(brought, committed), own, self._losses, self._vectors.round)

    def restart(self) -> None:
        """Note where the new model is; the progress of peers was along another way."""
        self._began = self._begin()
        self._distances.restart()
