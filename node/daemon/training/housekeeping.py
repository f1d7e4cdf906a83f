"""Tasks of every pace besides steps and exchanges: figures for the status, checkpoints, and waiting for a restarted engine."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from starling.gossip.errors import EngineError
from starling.node.daemon.context import NodeContext
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.daemon.progress import Progress
from starling.node.daemon.training.evaluation import Evaluation
from starling.node.rpc import calls
from starling.node.status.record import Curve
from starling.node.status.snapshot import EngineFigures

UNDONE_ROUNDS = 3  # rounds in a row without a successful local step, after which a node reports that


@dataclass(slots=True)
class Housekeeping:
    """Reports one node's figures and events of training, and writes its checkpoints."""

    context: NodeContext
    engine: EngineSupervisor  # the context's engine, with its restarts
    progress: Progress
    evaluation: Evaluation
    cannot_save: str = ""  # reason why the last attempt to save failed; "" if it succeeded
    undone_rounds: int = 0  # rounds in a row in which all local steps were undone
    _began: float = field(default_factory=trio.current_time)
    _saved_at: float = -math.inf  # -inf: the first round is saved at once, so that a node that dies early can resume

    @asynccontextmanager
    async def surviving(self, lost: Callable[[], object] = lambda: None) -> AsyncIterator[None]:
        """Run a body that an EngineError ends: call `lost`, report it, and wait for the next engine."""
        try:
            yield
        except EngineError as error:
            lost()
            self.context.report.event("engine_lost", str(error), level="warning", round=self.progress.round)
            await self.engine.ready()

    async def save(self, export: Path | None = None) -> None:
        """Write the checkpoint and, if `export` is given, the model; a failure is reported once and stays in `cannot_save`."""
        self._saved_at = trio.current_time()
        advice = "training goes on"
        try:
            done = await self.engine.call(calls.Save(str(export or ""), final=export is not None))
            reason = done.reason if isinstance(done, calls.Refused) else ""
            advice += ", free some space (df -h)"
        except EngineError as error:
            reason = str(error)
        if reason and not self.cannot_save:
            self.context.report.event("cannot_save", f"{reason}; {advice}", level="error")
        elif self.cannot_save and not reason:
            self.context.report.event("saves_again", "checkpoints can be written again")
        self.cannot_save = reason

    async def save_when_due(self) -> None:
        """Write the checkpoint unless the last one is recent."""
        if trio.current_time() - self._saved_at >= self.context.config.checkpoint_s:
            await self.save()

    def trained(self, trained: calls.Trained, round: int) -> None:
        """Note that the local steps of `round` are done, and report what the engine says of them."""
        progress, report = self.progress, self.context.report
        steps = trained.figures.local_steps - progress.figures.local_steps
        progress.round = round + 1
        progress.computed.add(max(0, steps), trained.seconds)
        progress.speed.add(trio.current_time(), trained.figures.local_steps, progress.computed.seconds)
        self.measured(trained.figures)
        if steps:
            self.undone_rounds = self.undone_rounds + 1 if trained.undone >= steps else 0
        if self.undone_rounds == UNDONE_ROUNDS:
            text = f"all local steps of {UNDONE_ROUNDS} rounds were undone: loss, gradient or model was not finite"
            report.event("steps_undone", text, level="error", round=progress.round)
        if trained.halted and trained.halted != progress.halted:
            text = f"this node's data are no longer used for training: {trained.halted}; it still takes part in exchanges"
            report.event("data_at_rest", text, level="warning", round=progress.round)
        progress.halted = trained.halted
        for note in trained.notes:
            report.event("numerics_changed", note, level="warning", round=progress.round)

    def measured(self, figures: EngineFigures) -> None:
        """Store the engine's figures, with a point for each of their curves."""
        progress = self.progress
        progress.measured(figures)
        self._point(progress.losses, figures.loss)
        self._point(progress.distances, figures.distance)

    def _point(self, curve: Curve, value: float | None) -> None:
        if value is not None:
            curve.add(self.progress.round, trio.current_time() - self._began, value)
