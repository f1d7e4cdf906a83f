"""The distance of peers' models from ours, estimated from exchanges that take place anyway.

    responder           has both ends' values: the difference, before it is clipped and rounded
    initiator           has the difference as it is applied: clipped, and rounded by the codec
    swapped messages    the difference they imply, if any (`starling.gossip.api.Swapping.difference`)
    pulled vectors      the vectors

Shapes: d parameters, D numbers of the shared vector, k of one exchange.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low

import torch
from torch import Tensor

from starling.gossip.compress.support import Blocks, Fragment, Full, Indices, Support

PEERS = 5  # fewest peers of a figure: where a round has fewer exchanges, those of earlier rounds count too
MOST = 64  # most peers of a figure


@dataclass(slots=True)
class ConsensusDistance:
    """The consensus distance as one node sees it: the median over peers of the root mean square difference per parameter.

    While most peers are honest, the median lies among honest distances, however long a Byzantine vector is; of an even number it
    is the lower one.
    For an exchange of some of the coordinates the mean is over these: unbiased for masks, too large for selectors
    that look for what differs most.
    """

    _fresh: dict[str, float] = field(default_factory=dict)  # distances since the last figure, by peer
    _older: dict[str, float] = field(default_factory=dict)  # earlier distances of other peers, the newest last

    @property
    def size(self) -> int:
        """Return the number of peers met since the last figure, at most MOST."""
        return len(self._fresh)

    def record(self, peer: str, apart: float | None) -> None:
        """Record the root mean square difference of an exchange with a peer; None: unknown."""
        if apart is None or math.isnan(apart):
            return
        self._older.pop(peer, None)
        self._fresh[peer] = apart
        if len(self._fresh) > MOST:
            del self._fresh[next(iter(self._fresh))]

    def record_vectors(self, peers: Sequence[str], vectors: Tensor, present: Tensor, own: Tensor) -> None:
        """Record pulled vectors (k, D) of `peers` where present (k,); ours is `own` (D,)."""
        for place, peer in enumerate(peers):
            if bool(present[place]):
                self.record(peer, rms(vectors[place] - own))

    def figure(self) -> float | None:
        """Return the figure, >= 0; None if nothing was recorded since the last one, or it is infinite."""
        if not self._fresh:
            return None
        missing = max(0, PEERS - len(self._fresh))
        older = dict(list(self._older.items())[-missing:]) if missing else {}
        figure = median_low([*older.values(), *self._fresh.values()])
        self._older = dict(list((older | self._fresh).items())[-PEERS:])
        self._fresh = {}
        return figure if math.isfinite(figure) else None

    def forget(self, peer: str) -> None:
        """Forget a peer that left."""
        self._fresh.pop(peer, None)
        self._older.pop(peer, None)

    def forget_all(self) -> None:
        """Delete all distances: this node's model was replaced."""
        self._fresh, self._older = {}, {}


def rms(difference: Tensor) -> float | None:
    """Return the root mean square of numbers (k,), infinite where squares overflow; None of no numbers."""
    if not difference.numel():
        return None
    return float(torch.linalg.vector_norm(difference)) / math.sqrt(difference.numel())


def measured(difference: Tensor, support: Support, dim: int, model: int) -> tuple[float, float | None]:
    """Return the norm of a difference (k,), and the root mean square of its model part; None where that cannot be separated from a tracker.

    `dim` and `model` as of `of_model`.
    """
    length = float(difference.norm())
    if model >= dim:
        return length, length / math.sqrt(difference.numel())
    return length, rms(of_model(difference, support, dim, model))


def of_model(values: Tensor, support: Support, dim: int, model: int) -> Tensor:
    """Return a view of the values (k,) on a support that belong to the model, the first `model` of D = `dim`; of none if they are mixed."""
    match support:
        case _ if model >= dim:
            return values
        case Full():
            return values[:model]
        case Fragment():
            return values[: max(0, model - support.index(dim).start)]
        case Blocks() | Indices():
            return values[: int(torch.searchsorted(support.index(dim), model))]
        case _:
            return values[:0]
