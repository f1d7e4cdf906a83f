"""Models that peers offered to a late joiner, until one is made of them.

Shapes: d parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median_low

from torch import Tensor

from starling.gossip.errors import LocalProtocolError
from starling.node.rpc import calls
from starling.robust.model_agreement import agree

MOST = 3
"""Models held at a time."""


@dataclass(slots=True)
class ModelCandidates:
    """At most `MOST` models, by peer.

    Args:
        origin: gives (d,) where training began.
    """

    origin: Callable[[], Tensor]
    _held: dict[str, tuple[int, Tensor]] = field(default_factory=dict)
    _turn: int = 0

    def add(self, peer: str, round: int, model: Tensor, turn: int = 0) -> None:
        """Keep a model (d,), finite; those of another turn are held no more.

        Raises:
            LocalProtocolError: there are too many.
        """
        if turn != self._turn:
            self._held, self._turn = {}, turn
        if len(self._held) >= MOST and peer not in self._held:
            raise LocalProtocolError(f"{MOST} models are held already")
        self._held[peer] = (round, model)

    def take(self) -> tuple[calls.Agreed, Tensor | None]:
        """What they agree on, and the model (d,) that comes of it; none is held any more.

        Raises:
            LocalProtocolError: there is none.
        """
        if not self._held:
            raise LocalProtocolError("no model is held")
        peers = sorted(self._held)
        rounds, models = zip(*(self._held[peer] for peer in peers), strict=True)
        self._held = {}
        agreement = agree(models, self.origin().to(models[0].device), rounds)
        at = median_low(rounds[i] for i in agreement.cluster) if agreement.cluster else 0
        names = (tuple(peers[i] for i in which) for which in (agreement.cluster, agreement.outside))
        return calls.Agreed(at, *names), agreement.state
