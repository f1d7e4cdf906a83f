"""The vector that exchanges read, and where their effects are collected: frozen for a round in pace "steps", live in pace "clock".

Shapes: D numbers of the shared vector.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from torch import Tensor

from starling.gossip.api import Phase
from starling.gossip.edge_memory import Committed
from starling.gossip.errors import LocalProtocolError
from starling.gossip.replica import Replica
from starling.node.engine.drift import Drift
from starling.node.engine.exchange.api import Examine, Frozen, T
from starling.node.engine.privacy.csprng import Csprng

_AVERAGED = 0.1  # weight of the newest value in the mean number of local steps between exchanges


class Outgoing(Protocol):
    """Makes the vector that is sent to peers. Both ends of an exchange use it, so the sum of both vectors is preserved."""

    def frozen(self, vector: Tensor, *, live: bool) -> Tensor:
        """Return (D,) for a whole round. `live`: the vector is the model itself, which is not changed before the round is mixed."""

    def now(self, vector: Tensor) -> Tensor:
        """Return (D,) for one exchange."""


class Plain:
    """Sends the vector itself."""

    def frozen(self, vector: Tensor, *, live: bool) -> Tensor:
        """Return the vector: the model itself where it is live, else a copy."""
        return vector if live else vector.clone()

    def now(self, vector: Tensor) -> Tensor:
        return vector


class Noised:
    """A copy with Gaussian noise of a standard deviation, drawn anew each time."""

    def __init__(self, csprng: Csprng, deviation: float) -> None:
        self._csprng, self._deviation = csprng, deviation

    def frozen(self, vector: Tensor, *, live: bool) -> Tensor:
        """Return a noised copy of the frozen vector."""
        return self._csprng.noised(vector, self._deviation)

    def now(self, vector: Tensor) -> Tensor:
        """Return a noised copy of the vector."""
        return self._csprng.noised(vector, self._deviation)


def nothing(_own: Tensor, _committed: Sequence[Committed]) -> None:
    """Look at nothing."""


class FrozenVectors:
    """Pace "steps": one vector for all exchanges of a round, whose effects wait for its Mix. Satisfies `Vectors`."""

    exclusive = False

    def __init__(self, replica: Replica, outgoing: Outgoing, local_steps: int) -> None:
        self._replica, self._outgoing = replica, outgoing
        self.local_steps = float(local_steps)
        self.round = 0  # the round to do next
        self.drift = Drift()
        self.examine: Examine = nothing
        self.frozen: Frozen | None = None
        self.committed: list[Committed] = []

    @property
    def ready(self) -> bool:
        """Return whether there is a frozen vector: between the end of Train and Mix."""
        return self.frozen is not None

    def freeze(self, phase: Phase) -> None:
        """Freeze the replica's shared vector."""
        shared = self._replica.shared()
        self.frozen = Frozen(self._outgoing.frozen(shared, live=shared is self._replica.x), phase)

    def detach(self) -> None:
        """Copy the frozen vector if it is the model itself, which is about to change."""
        if self.frozen is not None and self.frozen.vector is self._replica.x:
            self.frozen = Frozen(self._replica.x.clone(), self.frozen.phase)

    def vector(self, peer: str) -> Tensor:
        """Return the frozen vector."""
        if self.frozen is None:
            raise LocalProtocolError("there is no frozen vector between Mix and the end of the next Train")
        return self.frozen.vector

    def take(self, done: Committed) -> None:
        """Store an effect until the next Mix."""
        self.committed.append(done)

    def under_way(self, others: Sequence[T]) -> Sequence[T]:
        """Return none: all exchanges of a round read one frozen vector, and its mixing weights sum to at most 1."""
        return ()

    def thawed(self) -> tuple[Frozen | None, list[Committed]]:
        """Return the frozen vector and the committed effects, and clear both."""
        frozen, committed = self.frozen, self.committed
        if frozen is not None:
            self.frozen, self.committed = None, []
            self.examine(frozen.vector, committed)
        return frozen, committed

    def book(self, peer: str) -> None:
        """Add a peer's effects to its edge before the edge is closed or deleted, or Mix would recreate the edge."""
        self.committed = [self._replica.edge_only(done) if done.peer == peer else done for done in self.committed]

    def forget_all(self) -> None:
        """Delete the frozen vector: the model was replaced."""
        self.frozen, self.committed = None, []


class GradientWindow:
    """Marks the time in which a gradient is computed, when the model does not change. The driver sets `around`."""

    def __init__(self) -> None:
        self.around: Any = nullcontext
        self.open = False

    @contextmanager
    def _entered(self) -> Any:
        self.open = True
        try:
            with self.around():
                yield
        finally:
            self.open = False

    def __call__(self) -> AbstractContextManager[None]:
        """Return a context in which the window is open."""
        entered: AbstractContextManager[None] = self._entered()
        return entered


class LiveVectors:
    """Pace "clock": the live vector, to which effects are added at once, or at the end of the local step. Satisfies `Vectors`.

    Args:
        phase: of (round, local steps).
        steps: gives the local steps done.
        window: in which no effect is added.
        local_steps: of the manifest, from which the measured mean begins.
    """

    exclusive = True
    ready = True

    def __init__(
        self,
        replica: Replica,
        outgoing: Outgoing,
        phase: Callable[[int, float], Phase],
        steps: Callable[[], int],
        window: GradientWindow,
        local_steps: int,
    ) -> None:
        self._replica, self._outgoing = replica, outgoing
        self._phase, self._steps, self._window = phase, steps, window
        self.round = 0
        self.drift = Drift()
        self.examine: Examine = nothing
        self.taken: list[Committed] = []
        self._mean_gap = local_steps / 2.0  # mean number of local steps between any two exchanges of this node
        self._last = steps()

    @property
    def local_steps(self) -> float:
        """Return the local steps between two exchanges that this node initiates, about every second one.

        A gap that is longer than usual counts in full, as the models had that long to part; so the gain errs to the small side.
        """
        return max(1.0, 2.0 * self._mean_gap, float(self._steps() - self._last))

    def vector(self, peer: str) -> Tensor:
        """Return the live vector."""
        self.drift.end(self._replica.shared)
        return self._outgoing.now(self._replica.shared())

    def take(self, done: Committed) -> None:
        """Add an effect at once, or store it until the gradient is computed."""
        if self._window.open:
            self.taken.append(done)
        else:
            self._add(done)

    def under_way(self, others: Sequence[T]) -> Sequence[T]:
        """Return all: two of them would overshoot."""
        return others

    def stepped(self) -> None:
        """Add the effects that came while the gradient was computed."""
        for done in self.taken:
            self._add(done)
        self.taken = []

    def book(self, peer: str) -> None:
        """Do nothing: effects are added as they come."""

    def forget_all(self) -> None: ...

    def _add(self, done: Committed) -> None:
        self.examine(self._replica.shared(), [done])
        steps = self._steps()
        phase = self._phase(self.round, float(steps - self._last))
        self._mean_gap += _AVERAGED * (phase.local_steps - self._mean_gap)
        self._last = steps
        self._replica.combine([done], phase)
        self.drift.begin(self._replica.shared)
