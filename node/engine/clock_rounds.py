"""Pace "clock": Free starts training; exchanges read the live vector, and their effects are added at once, between two local steps."""

import math
from collections.abc import Callable

from starling.gossip.errors import LocalProtocolError
from starling.node.engine.exchange.api import Handlers
from starling.node.engine.local.trainer import Trainer
from starling.node.engine.rounds import Report, Tally
from starling.node.engine.vectors import LiveVectors
from starling.node.rpc import calls


class ClockRounds:
    """Pace "clock". Satisfies `Rounds`."""

    def __init__(
        self, trainer: Trainer, vectors: LiveVectors, report: Report, distance: Callable[[], float | None], clock: Callable[[], float]
    ) -> None:
        self._trainer, self.vectors = trainer, vectors
        self._report, self._distance, self._clock = report, distance, clock
        self.tally = Tally(clock())
        self._free = False

    @property
    def round(self) -> int:
        """Return the current slot."""
        return self.vectors.round

    @property
    def granted(self) -> float:
        """Return inf if local steps are granted, else 0."""
        return math.inf if self._free else 0

    @property
    def waiting(self) -> bool:
        """Tell if effects arrived while the gradient was computed."""
        return bool(self.vectors.taken)

    def noted(self, round: int, loss: float | None) -> None:
        """Count a step done by a call."""
        self.vectors.round = round
        self.tally.note(loss)

    def handlers(self) -> Handlers:
        """Return the handler of Free."""
        return {calls.Free: self.free, calls.Train: self.train, calls.Mix: self.mix}

    def free(self, call: calls.Free) -> calls.Trained:
        """Train without pause, or pause."""
        self._free, self.vectors.round = call.on, call.round
        self._trainer.mark()
        tally, self.tally = self.tally, Tally(self._clock())
        return self._report(self.round, tally, self._distance())

    def train(self, _call: calls.Train) -> calls.Trained:
        """Raise LocalProtocolError: there are no rounds."""
        raise LocalProtocolError("a round is granted where there are rounds, one at a time")

    def mix(self, call: calls.Mix) -> calls.Done:
        """Combine nothing: effects were added as they came."""
        self.vectors.round = call.round + 1
        return calls.Done(distance=self._distance())

    def stepped(self, loss: float | None) -> calls.Trained | None:
        """Let the mixing algorithm act, and add the effects that came meanwhile."""
        self.tally.note(loss)
        self._trainer.replica.publish(self._trainer.rates.phase(self.round, 1.0))
        self.vectors.stepped()
        return None

    def cut_short(self) -> None:
        """Do nothing: nothing waits for local steps."""

    def begin(self, round: int) -> None:
        """Set the slot: exchanges read the live model."""
        self.vectors.round = round
        self.vectors.drift.begin(self._trainer.replica.shared)

    def book(self, peer: str) -> None:
        """Do nothing: effects are added as they come."""
