"""Evaluations on held-out data, and early stopping: the swarm ends its rounds once two thirds of the members no longer improve."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import trio

from starling.node.config.schema import PaceSection
from starling.node.daemon.membership.stop import StopService
from starling.node.daemon.progress import Progress, loss_told
from starling.node.daemon.training.local_work import LocalWork
from starling.node.interfaces import Level, Reporter
from starling.node.rpc import calls
from starling.node.status import format as show

_LEVELS: Mapping[str, Level] = MappingProxyType({"config": "error", "unmeasured": "info"})
"""Log levels of refused evaluations, by the kind of refusal."""


@dataclass(slots=True)
class Evaluation:
    """Runs one node's evaluations; `metric` is the task's."""

    pace: PaceSection
    work: LocalWork
    stop: StopService
    progress: Progress
    report: Reporter
    metric: str
    _began: float = field(default_factory=trio.current_time)

    def due(self, done: int) -> bool:
        """Return whether the model is to be evaluated after `done` rounds."""
        return done > 0 and done % self.pace.evaluate_every == 0

    @property
    def stopped_early(self) -> bool:
        """Return whether the swarm has agreed to stop before the last round."""
        return self.stop.agreed()

    async def evaluate(self) -> None:
        """Evaluate the model on held-out data. Raises EngineError: the engine was lost."""
        progress = self.progress
        match await self.work.evaluate(progress.round):
            case None:
                progress.evaluated.round = progress.round
            case calls.Refused(kind="config" | "unmeasured" as kind, reason=reason):
                progress.evaluated.round = progress.round
                self.report.event("not_evaluated", reason, level=_LEVELS[kind], round=progress.round)
            case calls.Evaluated() as evaluated:
                self._note(evaluated)

    def _note(self, evaluated: calls.Evaluated) -> None:
        kept, metric, done = self.progress.evaluated, self.metric, self.progress.round
        kept.value, kept.round = evaluated.value, done
        kept.best, kept.best_round = evaluated.best, evaluated.best_round
        kept.others = tuple(evaluated.others.items())
        kept.curve.add(done, trio.current_time() - self._began, evaluated.value)
        self.stop.evaluated(done, evaluated.value)
        level, doubt = loss_told(evaluated.loss)
        self.report.event(
            "evaluated",
            f"{metric} {evaluated.value:.4g}{show.others(kept.others)} after round {done}{doubt}",
            level=level,
            round=done,
            metric=metric,
            value=evaluated.value,
            loss=evaluated.loss,
            samples=evaluated.samples,
            alone=kept.alone,
            others=evaluated.others,
        )
