"""How far peers' models are from ours, as exchanges show it by the way: nothing is sent or asked for it.

    the end that answers    has both ends' values: the difference, before it is clipped and rounded
    the end that asked      has the difference as it is applied: no longer than the clip, rounded by the codec
    swapped messages        what they say of the peer's model, if they say anything of it (`starling.gossip.api.Swapping.difference`)
    gathered vectors        the vectors

Shapes: d parameters, D numbers of the shared vector, k of one exchange.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low

import torch
from torch import Tensor

from starling.gossip.compress.support import Blocks, Full, Indices, Support

PEERS = 5
"""Peers that a figure is of, at least: where a round has fewer exchanges, those of the rounds before count as well."""
MOST = 64
"""Peers that a figure is of, at most."""


@dataclass(slots=True)
class Distances:
    """The consensus distance as one node sees it: the median over peers of the root mean square difference per parameter.

    A median, as a liar's vector may be as long as it likes: while most of the peers are honest, one of the honest ones' is the figure.
    Of an even number the lower one, so that one of two cannot blow it up. Where an exchange is about a sample of the coordinates, the mean
    is that of the sample: unbiased for masks, which choose without looking; too large for selectors that look for what has moved
    (drift_top_k) and biased either way for those that look for large values or directions (top_k, dct_top_k, low_rank).
    """

    _fresh: dict[str, float] = field(default_factory=dict)  # since the last figure
    _older: dict[str, float] = field(default_factory=dict)  # of other peers, the newest last

    def note(self, peer: str, apart: float | None) -> None:
        """An exchange with a peer has taken place: `apart` is its root mean square, None where it says nothing."""
        if apart is None or math.isnan(apart):
            return
        self._older.pop(peer, None)
        self._fresh[peer] = apart
        if len(self._fresh) > MOST:
            del self._fresh[next(iter(self._fresh))]

    def gathered(self, peers: Sequence[str], told: Tensor, present: Tensor, own: Tensor) -> None:
        """Vectors told by peers, in their order: (k, D), of meaning where present (k,). Ours is `own` (D,)."""
        for place, peer in enumerate(peers):
            if bool(present[place]):
                self.note(peer, rms(told[place] - own))

    def take(self) -> float | None:
        """The figure, >= 0; None if nothing was noted since the last one, or it is no number."""
        if not self._fresh:
            return None
        missing = max(0, PEERS - len(self._fresh))
        older = dict(list(self._older.items())[-missing:]) if missing else {}
        figure = median_low([*older.values(), *self._fresh.values()])
        self._older = dict(list((older | self._fresh).items())[-PEERS:])
        self._fresh = {}
        return figure if math.isfinite(figure) else None

    def forget(self, peer: str) -> None:
        """The peer is gone."""
        self._fresh.pop(peer, None)
        self._older.pop(peer, None)

    def forget_all(self) -> None:
        """Our model is another one."""
        self._fresh, self._older = {}, {}


def rms(difference: Tensor) -> float | None:
    """Root mean square of numbers (k,), infinite where squares overflow; None of no numbers."""
    if not difference.numel():
        return None
    return float(torch.linalg.vector_norm(difference)) / math.sqrt(difference.numel())


def of_model(values: Tensor, support: Support, dim: int, model: int) -> Tensor | None:
    """Of values (k,) on a support those about the model.

    Args:
        values: in the support's order.
        support: of the shared vector.
        dim: D.
        model: how many numbers of it are the model: they come first.

    Returns:
        A view; None where the numbers of the support are of model and tracker alike.
    """
    match support:
        case _ if model >= dim:
            return values
        case Full():
            return values[:model]
        case Blocks() | Indices():
            return values[: int(torch.searchsorted(support.index(dim), model))]
        case _:
            return None
