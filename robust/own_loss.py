"""Find peers whose models do worse on this node's own data than those of all others.

    ratio     loss of a peer's model over that of ours, on one batch of our data
    worse     of a model farther than NEAR usual distances: a ratio more than WORSE times the largest of the other peers', if that one is
              at most ALIKE

The largest is the measure as honest models differ most where data do: where a node has samples that few have, one of its honest peers is
bad at them as well. A liar's ratio can only raise it, which spares peers and accuses none. Where even that is larger than ALIKE our data
are of few labels and our own loss on them is almost 0: honest ratios are then hundreds apart. Distance alone names nobody who is near, and
loss alone accuses who learns from other data; honest models are seldom both.

A loss costs a forward pass, so it is asked for where a model is farther than NEAR, and of each peer once in EVERY rounds, for a measure.

Shapes: D numbers of a model.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import NamedTuple

from starling.gossip.api import Losses
from starling.gossip.lazy_torch import Tensor
from starling.gossip.limits import keep

NEAR = 1.25
WORSE = 1.25
ALIKE = 30.0
VOTES = 3
EVERY = 20
LATELY = 60
"""Rounds for which a ratio is compared with."""
COMPARED = 64
"""Most peers of whom a ratio is known: those compared last."""


Brought = tuple[str, Callable[[], Tensor]]
"""A peer, and what gives the model (D,) that an exchange brought."""


class Worse(NamedTuple):
    """The reason why a model counts against a peer."""

    ratio: float
    largest: float  # of the other peers


@dataclass(slots=True)
class OwnLoss:
    """One node's knowledge of its peers' losses."""

    _ratios: dict[str, tuple[int, float]] = field(default_factory=dict)  # (round, ratio) by peer
    _due: dict[str, bool] = field(default_factory=dict)  # by peer: whether its model was farther than NEAR
    _worse: dict[str, Worse] = field(default_factory=dict)

    def met(self, peer: str, distance: float, usual: float, round: int) -> Worse | None:
        """Note an exchange at a distance, where a usual one is known (0: it is not) -> what was found of the one before."""
        far = usual > 0.0 and distance > NEAR * usual
        self._due.pop(peer, None)
        if far or round - self._ratios.get(peer, (-EVERY, 0.0))[0] >= EVERY:
            keep(self._due, peer, far, COMPARED)
        return self._worse.pop(peer, None)

    def due(self, peer: str) -> bool:
        """Return whether the loss of the model that came in a peer's last exchange is needed."""
        return peer in self._due

    def compare(self, brought: Iterable[Brought], own: Tensor, losses: Losses | None, round: int) -> None:
        """Compute and take the losses of our model (D,) and of those brought, where they are needed and can be computed."""
        for peer, model in brought:
            if losses is not None and self.due(peer):
                self.record(peer, float(losses(own[None])), float(losses(model()[None])), round)

    def record(self, peer: str, ours: float, theirs: float, round: int) -> None:
        """Take the losses of both models of a peer's last exchange. Of losses that are not positive nothing is learned."""
        far = self._due.pop(peer, False)
        if not (ours > 0.0 and isfinite(ours) and theirs > 0.0):
            return
        ratio = theirs / ours
        others = [seen for other, (at, seen) in self._ratios.items() if other != peer and at >= round - LATELY]
        largest = max(1.0, *others) if len(others) >= VOTES else inf
        if far and largest <= ALIKE and ratio > WORSE * largest:
            keep(self._worse, peer, Worse(ratio, largest), COMPARED)
        elif isfinite(ratio):
            keep(self._ratios, peer, (round, ratio), COMPARED)

    def forget(self, peer: str) -> None:
        """Forget what was found of a peer's last exchange."""
        self._due.pop(peer, None)
        self._worse.pop(peer, None)

    def restart(self) -> None:
        """Forget all: our model is another one."""
        self._ratios, self._due, self._worse = {}, {}, {}
