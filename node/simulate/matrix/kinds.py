"""The exchanges of a swarm by the kind of its mixing algorithm, chosen once.

Shapes: N rows, r of them, D numbers of the shared vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Mixer, Selector
from starling.gossip.mix.base import origin
from starling.gossip.mix.broadcast_codec import BroadcastCodec
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.kinds import PULLED, EdgeKind, kind_of
from starling.node.simulate.matrix.average import Differences, Flows
from starling.node.simulate.matrix.batch import Batch, Sizes
from starling.node.simulate.matrix.broadcast import Broadcasts
from starling.node.simulate.matrix.byzantine import Byzantine, View, falsified
from starling.node.simulate.matrix.distances import Defence
from starling.node.simulate.matrix.edges import Edges, EdgeVectors, Pair
from starling.node.simulate.matrix.gather import Gathers, LossesOf
from starling.node.simulate.matrix.swap import Commons, Controls, Swaps
from starling.node.simulate.matrix.table import Rows, States


class RowExchanges(Protocol):
    """The exchanges of all rows, and what they keep between rounds."""

    @property
    def pending(self) -> Mapping[Pair, object]:
        """Return the updates that responders have answered but not committed."""

    def exchange(self, batch: Batch, honest: Batch, view: View, unreachable: NDArray[np.int64]) -> Sizes:
        """Do all exchanges of a batch, in which attackers have replaced the `honest` vectors; return bytes.

        `unreachable` (N,): number of further peers that each row requests without answer. Raises ValueError: "not_finite": the swarm has
        diverged.
        """

    def less_pending(self, batch: Batch) -> Batch:
        """Return the batch with ends that count as done what they have pending with others."""

    def resolve(self, batch: Batch) -> None:
        """Commit what responders learn from these exchanges."""

    def remove(self, pair: Pair) -> None:
        """Delete the state of an edge that was closed."""

    def told(self, batch: Batch, state: Any) -> Batch:
        """Return the batch of rows with this state, with what exchanges say of it."""

    def correction(self, rows: Rows) -> Tensor | None:
        """Return (r, D) what all edges of some rows contribute to the correction of local steps; None: nothing ever."""


Forge = Callable[[Batch, View], Batch]
"""A batch and what attackers see -> the batch as they make it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Parts that exchanges need besides the mixing algorithm."""

    codec: ExchangeCodec
    selector: Selector
    edges: Edges
    states: States
    compares: bool  # the selector uses the last estimate of the peer's vector
    wish_limit: int
    settled_edges: int
    losses: LossesOf | None
    byzantine: Byzantine | None
    defence: Defence


def exchanges_of(mixer: Mixer, model: Tensor, vectors: Tensor, of: Settings) -> RowExchanges:
    """Return the exchanges for rows that start with a model (d,), whose shared vectors are like `vectors` (N, D)."""
    return _MADE[kind_of(mixer.edge)](mixer, origin(mixer, model), vectors, of)


def settled_of(mixer: Mixer) -> Callable[[Tensor, Any], Tensor]:
    """Return a function from models (N, d) and states to the models that are evaluated and sent: with broadcasts, the outer parameters."""
    edge: Any = mixer.edge
    settled: dict[EdgeKind, Callable[[Tensor, Any], Tensor]] = {EdgeKind.BROADCASTS: lambda _x, state: edge.settled(state)}
    return settled.get(kind_of(edge), lambda x, _state: x)


def _gathers(mixer: Any, _start: Tensor, _vectors: Tensor, of: Settings) -> RowExchanges:
    return Gathers(mixer, of.codec, of.edges, of.states, of.losses, of.byzantine)


def _broadcasts(mixer: Any, _start: Tensor, _vectors: Tensor, of: Settings) -> RowExchanges:
    return Broadcasts(mixer.edge, BroadcastCodec(of.selector, of.codec.response), of.edges, of.states)


def _swaps(kind: type[Swaps], mixer: Any, start: Tensor, _vectors: Tensor, of: Settings) -> RowExchanges:
    return kind(mixer.edge, of.codec, of.selector, of.edges, EdgeVectors(mixer.edge.begin(start)))


def _differences(mixer: Any, start: Tensor, vectors: Tensor, of: Settings) -> RowExchanges:
    keeps = mixer.edge.size(start.numel())
    flows = Flows(mixer.edge, torch.zeros_like(vectors), of.settled_edges) if keeps else None
    return Differences(
        of.codec, of.selector, of.edges, flows, EdgeVectors(start) if of.compares else None, of.wish_limit, defence=of.defence
    )


_MADE: Mapping[EdgeKind, Callable[[Mixer, Tensor, Tensor, Settings], RowExchanges]] = MappingProxyType(
    {
        EdgeKind.DIFFERENCES: _differences,
        EdgeKind.SWAPS: partial(_swaps, Swaps),
        EdgeKind.COMMON: partial(_swaps, Commons),
        EdgeKind.CONTROLS: partial(_swaps, Controls),
        EdgeKind.GATHERS: _gathers,
        EdgeKind.BROADCASTS: _broadcasts,
    }
)


def forge_of(kind: EdgeKind, byzantine: Byzantine | None, edges: Edges, codec: ExchangeCodec) -> Forge:
    """Return what attackers make of a batch before it is exchanged; where vectors are pulled they lie to each receiver apart."""
    if byzantine is None or kind in PULLED or byzantine.attack.targets == "memory":
        return lambda batch, _: batch
    return lambda batch, view: falsified(batch, byzantine, view, edges.rank, codec.request)
