"""Progress of a node's training: written by training, read for the status."""

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from msgspec import structs

from starling.node.interfaces import Level
from starling.node.status.record import Curve
from starling.node.status.snapshot import EngineFigures

RATE_OVER = 16  # rounds

State = Literal["starting", "joining", "training", "waiting", "finished", "leaving", "failed"]


class Rate:
    """Rate of a count over the last `window` >= 1 samples: per second of all time, and per second spent on the work itself."""

    def __init__(self, window: int = RATE_OVER) -> None:
        self._samples: deque[tuple[float, int, float]] = deque(maxlen=window + 1)

    def add(self, now: float, count: int, busy_s: float = 0.0) -> None:
        """Add a sample: the count at a monotonic time, and seconds spent on it so far. A count that fell starts a new series."""
        if self._samples and count < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, count, busy_s))

    def per_s(self, now: float = -math.inf) -> float | None:
        """Return the rate at the last sample; with a time, it falls while the next sample is overdue. None before the second sample."""
        if len(self._samples) < 2:
            return None
        (began, first, _), (ended, last, _) = self._samples[0], self._samples[-1]
        usual_s = (ended - began) / (len(self._samples) - 1)
        elapsed = max(ended, now - usual_s) - began
        return (last - first) / elapsed if elapsed > 0.0 else None

    def per_busy_s(self) -> float | None:
        """Return the rate over the time spent on the work itself, at least `per_s`; None before the second sample."""
        if len(self._samples) < 2:
            return None
        (began, first, busy_before), (ended, last, busy) = self._samples[0], self._samples[-1]
        busy_s = min(busy - busy_before, ended - began)
        return (last - first) / busy_s if busy_s > 0.0 else None


class Waits:
    """How long a node waited for late peers in its last `window` >= 1 rounds, and for whom."""

    def __init__(self, window: int = RATE_OVER) -> None:
        self._rounds: deque[tuple[float, float, tuple[str, ...]]] = deque(maxlen=window)

    def add(self, elapsed_s: float, waited_s: float, peers: tuple[str, ...]) -> None:
        """Add a round that took `elapsed_s`, of which it waited `waited_s` beyond what is usual for these peers."""
        self._rounds.append((elapsed_s, waited_s, peers))

    @property
    def share(self) -> float | None:
        """Return the share of the time, 0 to 1; None before the first round."""
        elapsed_s = sum(elapsed_s for elapsed_s, _, _ in self._rounds)
        return min(1.0, sum(waited_s for _, waited_s, _ in self._rounds) / elapsed_s) if elapsed_s > 0.0 else None

    @property
    def longest(self) -> str:
        """Return the peer that it waited for longest, "" for nobody."""
        waited = defaultdict[str, float](float)
        for _, waited_s, peers in self._rounds:
            for peer in peers if waited_s else ():
                waited[peer] += waited_s
        return max(sorted(waited), key=lambda peer: waited[peer], default="")


@dataclass(slots=True)
class Computed:
    """Work of this process: without that before a checkpoint or in a fetched model, and without skipped rounds."""

    rounds: int = 0
    steps: int = 0
    seconds: float = 0.0  # in local steps

    def add(self, steps: int, seconds: float) -> None:
        """Add a round's local steps."""
        self.rounds += 1
        self.steps += steps
        self.seconds += seconds


class Evaluated:
    """Results of evaluations: the last and the best."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.round: int | None = None
        """Rounds done at the last evaluation, or attempt at one."""
        self.alone: float | None = None
        """Like `value`, before the exchanges of round `round - 1`, where that was measured."""
        self.others: tuple[tuple[str, float], ...] = ()
        """Further metrics, measured with `value`."""
        self.best: float | None = None
        """The value of the best model so far."""
        self.best_round: int | None = None
        self.curve = Curve()
        """Curve of `value`."""


class Progress:
    """State and figures of one node's run; `changed` is called when the state has changed."""

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        self._changed = changed
        self.state: State = "starting"
        self.round = 0
        """Rounds (slots) done."""
        self.current: int | None = None
        """The round (slot) in progress; None before the first."""
        self.joined_late = False
        """Training began with a model fetched from peers."""
        self.figures = EngineFigures()
        """The engine's latest; loss and distance are the last that were measured."""
        self.evaluated = Evaluated()
        self.computed = Computed()
        self.halted = ""
        """Why training on this node's data has stopped; "" while it continues."""
        self.few_steps = ""
        """Report of how few local steps were done so far; "" if at least half were."""
        self.losses, self.distances = Curve(), Curve()
        self.speed = Rate()
        """Rate of local steps."""
        self.waits = Waits()

    def measured(self, figures: EngineFigures) -> None:
        """Store the engine's figures; a loss or a distance that they lack stays as it was."""
        lacking = {name: getattr(self.figures, name) for name in ("loss", "distance") if getattr(figures, name) is None}
        self.figures = structs.replace(figures, **lacking)

    def enter(self, state: State) -> None:
        """Change the state and notify observers."""
        self.state = state
        self._changed()


def loss_told(loss: float | None) -> tuple[Level, str]:
    """Return how an evaluation is reported for its loss, None if it is not known: the log level, and a text for after the metric.

    Accuracy of outputs that are no numbers is still a number, so a broken model would look like a poor one.
    """
    if loss is None or math.isfinite(loss):
        return "info", ""
    return ("warning", f"; but its loss on held-out samples is {loss}: check the model and the samples for what is not finite")
