"""The learning rate of each round at one node, and the phase for exchanges."""

import math
from collections.abc import Callable
from dataclasses import replace

from starling.gossip.api import Phase
from starling.node.config.schema import Manifest
from starling.node.engine import schedules
from starling.node.engine.exchange.api import Vectors
from starling.node.engine.exchange.shares import Agreed, Lesser, Shares


class Rates:
    """The manifest's schedule, with a ramp after this node took over another's model.

    Attributes:
        shares: makes what both ends of an exchange do of a gain.
    """

    shares: Callable[[Vectors], Shares] = Agreed

    def __init__(self, manifest: Manifest) -> None:
        self._section, self._pace = manifest.optimizer, manifest.pace
        self._schedule = schedules.schedule(manifest.optimizer, manifest.pace.rounds)
        self._joined_at: int | None = None
        self._known = (-1, 0.0)  # (the last requested round, its rate)

    def used(self, effective_lr: float) -> None:
        """Do nothing: the manifest gives the rates."""

    def joined(self, round: int) -> None:
        """Begin the ramp at `round`."""
        self._joined_at, self._known = round, (-1, 0.0)

    def at(self, round: int) -> float:
        """Return the rate of `round`, > 0."""
        if round != self._known[0]:
            self._known = round, self._schedule.at(round) * self._ramp(round)
        return self._known[1]

    def phase(self, round: int, local_steps: float) -> Phase:
        """Return the phase of `round` at this node."""
        return schedules.phase(self._section, self._schedule, round, local_steps, self._ramp(round))

    def shared_phase(self, round: int, local_steps: float) -> Phase:
        """Return the phase of `round` that all nodes agree on: without a ramp."""
        return schedules.phase(self._section, self._schedule, round, local_steps)

    def _ramp(self, round: int) -> float:
        if self._joined_at is None:
            return 1.0
        return schedules.ramp(max(0, round - self._joined_at), self._pace.ramp_rounds)


class OwnRates(Rates):
    """Rates of a node whose script has its own schedule: phases use its last rate."""

    shares = Lesser

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        first = super().phase(0, 1.0)
        self._last, self._highest = first.lr, first.highest_lr

    def used(self, effective_lr: float) -> None:
        """Record by how much a local step along a unit direction moved a parameter, in the long run; other values are ignored."""
        if math.isfinite(effective_lr) and effective_lr > 0.0:
            self._last, self._highest = effective_lr, max(effective_lr, self._highest)

    def phase(self, round: int, local_steps: float) -> Phase:
        """Return the phase of `round` at this node."""
        return replace(super().phase(round, local_steps), lr=self._last, highest_lr=self._highest)

    def shared_phase(self, round: int, local_steps: float) -> Phase:
        """Return this node's phase: no rate is the same at all nodes."""
        return self.phase(round, local_steps)
