"""A stage of a crew: its calls compute a step's gradient a micro-batch at a time, and `Finish` applies it."""

from starling.gossip.errors import LocalProtocolError
from starling.node.engine.exchange.api import Handlers
from starling.node.engine.local.local_step import GradientStep
from starling.node.engine.local.task_trainer import TaskTrainer
from starling.node.extras.crew.engine.place import MicroBatch
from starling.node.extras.crew.engine.stage import Stage
from starling.node.extras.crew.engine.states import SavedStates
from starling.node.rpc import calls


class StageCalls:
    """Answers a crew's calls."""

    def __init__(self, trainer: TaskTrainer, step: GradientStep, stage: Stage, states: SavedStates) -> None:
        self._trainer, self._step, self._stage, self._states = trainer, step, stage, states

    def handlers(self) -> Handlers:
        """Return what answers each call."""
        return {
            calls.Advance: self.advance,
            calls.Retreat: self.retreat,
            calls.Summary: self.summary,
            calls.Finish: self.finish,
            calls.Abandon: self.abandon,
            calls.Point: self.point,
            calls.ReadPoint: self.read_point,
        }

    def advance(self, call: calls.Advance) -> calls.Advanced:
        """Compute a forward of a micro-batch."""
        if call.evaluate:
            return calls.Advanced(*self._stage.evaluation.advance(call.micro, call.payload, call.labels))
        at = MicroBatch(call.crew, call.step, call.micro)
        return calls.Advanced(*self._stage.advance(at, call.payload, call.labels), self._stage.over)

    def retreat(self, call: calls.Retreat) -> calls.Advanced:
        """Compute a backward of a micro-batch."""
        at = MicroBatch(call.crew, call.step, call.micro)
        return calls.Advanced(self._stage.retreat(at, call.payload), b"", self._stage.over)

    def summary(self, _call: calls.Summary) -> calls.Summed:
        """Return this stage's part of a step, or of an evaluation."""
        return calls.Summed(*self._stage.summary())

    def finish(self, call: calls.Finish) -> calls.Done:
        """Apply a step's gradient."""
        gradient = self._trainer.model.gradient
        self._step.steps += 1
        if call.scale != 1.0:
            gradient.mul_(call.scale)
        self._trainer.noted(call.round, self._step.apply(call.round, call.loss, gradient, is_finite=call.fine))
        self._step.steps = call.steps
        self._stage.finish(applied=call.fine)
        return calls.Done()

    def abandon(self, _call: calls.Abandon) -> calls.Done:
        """Abandon or end a step or an evaluation."""
        self._stage.abandon()
        return calls.Done()

    def point(self, call: calls.Point) -> calls.Pointed:
        """Store a state of the stage, restore one, or adopt another machine's."""
        if call.action == "carry":
            self._states.carry(call.crew)
        elif self._states.moved(call.crew):
            self._step.steps = 0
        act = {"look": self._look, "carry": self._look, "keep": self._keep, "back": self._back, "take": self._take}[call.action]
        size = act(call)
        return calls.Pointed(self._step.steps, self._states.points, size)

    def _look(self, _call: calls.Point) -> int:
        return 0

    def _keep(self, call: calls.Point) -> int:
        self._step.steps = call.step  # another number than its own where the crew has no common state
        return self._states.keep(self._step.steps, self._trainer.tensors())

    def _back(self, call: calls.Point) -> int:
        try:
            self._trainer.rewind(self._states.unpacked(call.step), call.step)
        except (ValueError, OSError) as error:
            raise LocalProtocolError(f"the state {error}") from error
        self._stage.abandon()
        return 0

    def _take(self, call: calls.Point) -> int:
        size = self._states.put(call.step, call.state)
        try:
            self._back(call)
        except LocalProtocolError:
            self._states.drop(call.step)
            raise
        return size

    def read_point(self, call: calls.ReadPoint) -> calls.ChunkRead:
        """Return bytes of a stored state."""
        state = self._states.read(call.step)
        return calls.ChunkRead(state[call.offset : call.offset + call.length], len(state))
