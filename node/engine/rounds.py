"""Decide when local steps are done and when exchanges are combined: by rounds, or continuously.

steps   Train grants a round's local steps and freezes the shared vector; exchanges read the frozen one, and Mix adds their effects in
        order of peer id. An answer committed later than its round's Mix (its Ack was lost) is added at the next. Where rounds overlap,
        Train of the next runs while the vector is frozen, and Mix freezes anew after adding the effects.
clock   `starling.node.engine.clock_rounds`
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from starling.gossip.api import Phase
from starling.gossip.errors import LocalProtocolError
from starling.node.engine.exchange.api import Exchange, Handlers, Mixed
from starling.node.engine.local.trainer import Trainer
from starling.node.engine.vectors import FrozenVectors
from starling.node.rpc import calls


@dataclass(slots=True)
class Tally:
    """Counts local steps and their losses."""

    began: float
    steps: int = 0
    losses: float = 0.0
    counted: int = 0
    undone: int = 0

    def note(self, loss: float | None) -> None:
        """Count a step; None: it was undone, nan: it has no loss."""
        self.steps += 1
        if loss is None:
            self.undone += 1
        elif not math.isnan(loss):
            self.losses += loss
            self.counted += 1

    @property
    def mean(self) -> float | None:
        """Return the mean loss; None without a step, nan if none has a loss."""
        if self.counted:
            return self.losses / self.counted
        return math.nan if self.steps else None


Report = Callable[[int, Tally, float | None], calls.Trained]
"""(round, steps since the last report, consensus distance) -> the reply."""


class Rounds(Protocol):
    """Grants local steps, and acts at their ends."""

    tally: Tally

    @property
    def round(self) -> int:
        """Return the round that is done, or is next."""

    @property
    def granted(self) -> float:
        """Return the local steps left to do; inf: until further notice."""

    def handlers(self) -> Handlers:
        """Return the handlers of this pace's calls."""

    @property
    def waiting(self) -> bool:
        """Tell if effects wait for the end of the local step."""

    def stepped(self, loss: float | None) -> calls.Trained | None:
        """Count a finished local step -> the reply to Train, if it was the last one."""

    def noted(self, round: int, loss: float | None) -> None:
        """Count a local step of `round` that a call did."""

    def cut_short(self) -> calls.Trained | None:
        """End the granted round without further local steps -> the reply to Train; None: there is none to give."""

    def begin(self, round: int) -> None:
        """Make `round` the next one: the model is a checkpoint's, or another node's. Every exchange is void."""

    def book(self, peer: str) -> None:
        """Add a peer's effects to its edge before the edge is closed or deleted."""


class StepsRounds:
    """Pace "steps". Satisfies `Rounds`."""

    def __init__(
        self,
        trainer: Trainer,
        exchange: Exchange,
        vectors: FrozenVectors,
        report: Report,
        distance: Callable[[], float | None],
        clock: Callable[[], float],
    ) -> None:
        self._trainer, self._exchange, self.vectors = trainer, exchange, vectors
        self._report, self._distance, self._clock = report, distance, clock
        self.tally = Tally(clock())
        self._left = 0
        self._train = calls.Train(0, 0)  # granted last
        self._unfrozen = False  # whether local steps run before the Mix that freezes them

    @property
    def round(self) -> int:
        return self.vectors.round

    @property
    def granted(self) -> float:
        return self._left

    @property
    def waiting(self) -> bool:
        """Return False: calls wait for Mix, not for steps."""
        return False

    def noted(self, round: int, loss: float | None) -> None:
        """Count a step done by a call."""
        self.vectors.round = round
        self.tally.note(loss)

    def handlers(self) -> Handlers:
        """Return the handlers of Train and Mix."""
        return {calls.Train: self.train, calls.Mix: self.mix, calls.Free: self.free}

    def free(self, _call: calls.Free) -> calls.Trained:
        """Raise LocalProtocolError: there are rounds."""
        raise LocalProtocolError("training runs free in clock pace")

    def train(self, call: calls.Train) -> calls.Trained | None:
        """Grant a round's steps; `stepped` returns the reply, unless there is no step to do."""
        if self._left:
            raise LocalProtocolError("a round is granted where there are rounds, one at a time")
        if call.ahead:
            self.vectors.detach()
        else:
            self._combine()
        self.vectors.round, self._train = call.round, call
        if self._trainer.facts.crew.by_calls:  # the crew's calls do the steps
            return self._finished()
        self.tally = Tally(self._clock())
        self._left = call.steps
        return None if call.steps > 0 else self._finished()

    def stepped(self, loss: float | None) -> calls.Trained | None:
        """Count a step -> the reply to Train, if it was the last."""
        self.tally.note(loss)
        self._left -= 1
        return self._finished() if self._left == 0 else None

    def cut_short(self) -> calls.Trained | None:
        """End the round after the steps done so far."""
        self._left = 0
        return self._finished()

    def mix(self, call: calls.Mix) -> calls.Done:
        """Combine what was committed or received. What was committed after the last round's Mix counts without another Train."""
        if self._left > 0:
            raise LocalProtocolError("local steps of the round are left to do")
        if self.vectors.frozen is None and self.vectors.committed:
            self.train(calls.Train(call.round, 0))
        mixed = self._combine(call.requested, own=call.own)
        self.vectors.round = call.round + 1
        if self._unfrozen:
            self._freeze()
        return calls.Done(clipped_or_excluded=mixed.excluded, distance=self._distance(), diverged=mixed.diverged)

    def begin(self, round: int) -> None:
        """Delete the frozen vector."""
        self.vectors.forget_all()
        self.vectors.round, self._unfrozen = round, False
        self.vectors.drift.begin(self._trainer.replica.shared)

    def book(self, peer: str) -> None:
        """Add a peer's committed effects to its edge."""
        self.vectors.book(peer)

    def _combine(self, requested: Sequence[str] = (), *, own: bool = True) -> Mixed:
        frozen, committed = self.vectors.thawed()
        if frozen is None:
            return Mixed()
        self._trainer.trim()
        mixed = self._exchange.mix(frozen, committed, requested, own=own)
        del committed
        self.vectors.drift.begin(self._trainer.replica.shared)
        if mixed.replaced:
            self._trainer.replaced()
        self._trainer.mark()
        self._trainer.trim()
        return mixed

    def _finished(self) -> calls.Trained:
        """Finish the local steps of a round."""
        self.vectors.drift.end(self._trainer.replica.shared)
        if self._train.ahead and self.vectors.frozen is not None:
            self._unfrozen = True
        else:
            self._freeze()
        tally, self.tally = self.tally, Tally(self._clock())
        return self._report(self.round, tally, None)

    def _freeze(self) -> None:
        self._unfrozen = False
        phase = self._phase()
        self._trainer.replica.publish(phase)
        self._trainer.release_gradient()
        self.vectors.freeze(phase)

    def _phase(self) -> Phase:
        granted = self._train
        return replace(
            self._trainer.rates.phase(granted.round, float(granted.steps)), first=granted.first, last=granted.last, turn=granted.turn
        )
