"""Interfaces between exchanges, the node that has them, and the session.

Shapes: d parameters, D numbers of the shared vector.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from starling.gossip.api import Losses, Phase
from starling.gossip.compress.budget import Effort
from starling.gossip.edge_memory import Committed
from starling.gossip.replica import Replica
from starling.node.engine.consensus import ConsensusDistance
from starling.node.engine.drift import Drift
from starling.node.rpc import calls
from starling.robust.progress import Uniform

T = TypeVar("T")
Examine = Callable[[Tensor, Sequence[Committed]], None]
"""Looks at our vector (D,) of exchanges, and at their effects."""
Handlers = Mapping[type[calls.Call], Callable[[Any], Any]]
"""Handlers by the type of the call; exceptions are those that `Worker.handle` turns into `Refused`."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A vector that all exchanges of a round read."""

    vector: Tensor  # (D,)
    phase: Phase


class Vectors(Protocol):
    """Vectors that exchanges read, and where their effects go once they are committed; one class per pace (`node.engine.vectors`)."""

    @property
    def round(self) -> int:
        """Return the round that is done, or is next."""

    examine: Examine
    """Called before effects are added, outside of gradients."""

    @property
    def ready(self) -> bool:
        """Tell if there is a vector for exchanges now."""

    @property
    def exclusive(self) -> bool:
        """Tell if effects are added one by one as they are committed; else all exchanges of a round read one frozen vector."""

    @property
    def drift(self) -> Drift:
        """Return the measure of how far local steps go between exchanges."""

    @property
    def local_steps(self) -> float:
        """Return K, the local steps between two exchanges, a mean where it is measured."""

    def vector(self, peer: str) -> Tensor:
        """Return (D,) the vector for an exchange with `peer`; "": for all that pull it. Raises LocalProtocolError if none is frozen."""

    def take(self, done: Committed) -> None:
        """Add the effect of a committed exchange, now or at the pace's time."""

    def under_way(self, others: Sequence[T]) -> Sequence[T]:
        """Return what is to be anticipated of transactions with others: all, where effects are added one by one, else none."""


class SharedRates(Protocol):
    """Learning rates as both ends of an exchange must know them."""

    @property
    def shares(self) -> Callable[[Vectors], Any]:
        """Return what computes both ends' share of a gain, as `starling.node.engine.exchange.shares.Shares`."""

    def shared_phase(self, round: int, local_steps: float) -> Phase:
        """Return the phase of `round` as it is at all nodes: without a late joiner's ramp."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What exchanges need of the machine."""

    work: Callable[[], float]  # returns processor seconds of the calling thread, to measure exchanges
    uniform: Uniform  # draws what peers must not know


@dataclass(frozen=True, slots=True)
class Site:
    """Facts of the node whose exchanges these are."""

    open_request: calls.Open
    vectors: Vectors
    rates: SharedRates
    losses: Losses | None  # losses of models on the batch of the last local step; None where they would reveal data
    distances: ConsensusDistance
    machine: Machine


@dataclass(frozen=True, slots=True)
class Mixed:
    """Result of a combination."""

    excluded: tuple[str, ...] | None = None  # requested peers that the rule excluded; None: unknown
    diverged: calls.Divergence | None = None  # as of `Done`
    replaced: bool = False  # whether our own vector did not count, so the optimiser's state belongs to another model


class Exchange(Protocol):
    """One node's exchanges of one kind with all its peers."""

    effort: Effort  # measures what exchanges and local steps cost this node

    @property
    def replica(self) -> Replica:
        """Return the replica that exchanges change."""

    def handlers(self) -> Handlers:
        """Return the handler of each call of this kind of exchange."""

    def mix(self, frozen: Frozen, committed: Sequence[Committed], requested: Sequence[str], *, own: bool) -> Mixed:
        """Combine what was committed, or received from the `requested` peers, since the last call into the replica.

        `own`: whether our own vector counts, where vectors are pulled.
        """

    def forget(self, peer: str) -> None:
        """Delete a peer's pending state: its edge is closed or void."""

    def forget_all(self) -> None:
        """Delete the state of all edges."""
