"""The learning rate of each round at one node, and the phase that exchanges are told."""

from starling.gossip.api import Phase
from starling.node.config.schema import Manifest
from starling.node.engine import schedules


class Rates:
    """The manifest's schedule, with a ramp after this node took over another's model."""

    def __init__(self, manifest: Manifest) -> None:
        self._section, self._pace = manifest.optimizer, manifest.pace
        self._schedule = schedules.schedule(manifest.optimizer, manifest.pace.rounds)
        self._joined_at: int | None = None
        self._known = (-1, 0.0)  # the round that was asked for last, and its rate

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
        """Return the phase of `round` as it is at all nodes: without a ramp."""
        return schedules.phase(self._section, self._schedule, round, local_steps)

    def _ramp(self, round: int) -> float:
        if self._joined_at is None:
            return 1.0
        return schedules.ramp(max(0, round - self._joined_at), self._pace.ramp_rounds)
