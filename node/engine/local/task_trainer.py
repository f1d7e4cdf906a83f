"""Local steps of a task. Satisfies `starling.node.engine.local.trainer.Trainer`.

On one machine, with the same number of threads (which adapts unless the owner sets `threads`), equal manifest, node label and exchanges
give the same bits.

Shapes: d parameters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from starling.gossip.api import Losses
from starling.gossip.binding import lent
from starling.gossip.replica import Replica
from starling.node.engine import tensor_file
from starling.node.engine.exchange.api import Handlers
from starling.node.engine.local.guard import Guard
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.local.local_step import Descent, LocalStep
from starling.node.engine.local.rates import Rates
from starling.node.engine.local.trainer import TrainerFacts, TrainerFigures
from starling.node.engine.measured_model import MeasuredModel, followers
from starling.node.engine.model_file import facts
from starling.node.engine.noise_scale import NoiseScale, Unmeasured
from starling.node.engine.numerics import Gradients
from starling.node.engine.privacy.accountant import Account
from starling.node.engine.side_state import named
from starling.node.tasks.api import taken_notes
from starling.node.tasks.evaluate import Result, evaluate
from starling.node.tasks.reserved import Reserved

EVALUATION_BATCH = 256  # held-out samples of a slice, about the work of a local step
_X = "x"
_OPTIMIZER = "optimizer."
_KNOWN = "known."


Noted = Callable[[int, float | None], None]
"""Called with the round and the result of each local step that a call did."""


@dataclass(frozen=True, slots=True)
class Means:
    """Parts of a node's local steps besides its model.

    Args:
        hides: steps are private, so that nothing else is said of the data.
        long_steps: calls should not wait for one.
    """

    gradients: Gradients
    noise: NoiseScale | Unmeasured
    account: Account
    descent: Descent
    long_steps: bool
    hides: bool


class TaskTrainer:
    """Trains a replica on a task's data."""

    def __init__(self, model: LocalModel, replica: Replica, local_step: LocalStep, guard: Guard, rates: Rates, means: Means) -> None:
        self.model, self.replica, self.local_step, self.guard, self.rates, self.means = (model, replica, local_step, guard, rates, means)
        task = model.task
        self.facts = TrainerFacts(task.metric, task.higher_is_better, model.data.samples, model.device, model.large)
        self.calls: Handlers = {}
        self.noted: Noted = lambda _round, _loss: None

    @property
    def schema(self) -> bytes:
        return self.model.layout.digest

    @property
    def steps(self) -> int:
        return self.local_step.steps

    @property
    def step(self) -> LocalStep:
        """Return the function that does a local step."""
        return self.local_step

    def handlers(self) -> Handlers:
        """Return the handlers of a crew's calls, in a crew."""
        return self.calls

    def losses(self) -> Losses | None:
        """Return losses on the last batch; None with differential privacy, and for a stage of a crew, which has no loss of its own."""
        if self.means.hides or self.facts.crew.by_calls:
            return None
        return lambda models: self.model.losses(self.model.batch(max(0, self.steps - 1)), models)

    def figures(self) -> TrainerFigures:
        """Return the current figures."""
        account = self.means.account
        return TrainerFigures(account.epsilon(), account.problem, self.means.noise.figure)

    def take_notes(self) -> tuple[str, ...]:
        """Return notes on gradients, samples, and changes besides the parameters."""
        return taken_notes(self.means.gradients, self.model.data, self.model.side)

    def evaluation(self) -> tuple[MeasuredModel, Iterator[Result | None]]:
        """Return a copy of the current model, and slices of its evaluation; training may go on meanwhile."""
        model, measured = self.model, self._measured()
        own = self.replica.scope.personal or isinstance(model.data, Reserved)
        evaluated = evaluate(model.task, model.module, model.data, EVALUATION_BATCH, own=own)
        return measured, measured.slices(chain(model.statistics(model.module), evaluated))

    def exported(self) -> dict[str, Tensor]:
        """Return the model's state, copied except for frozen parameters."""
        measured = self._measured()
        for _ in measured.slices(self.model.statistics(self.model.module)):
            pass
        return measured.entries()

    def _measured(self) -> MeasuredModel:
        with lent(self.model.binding, self.replica.settled):
            return MeasuredModel(self.model.module, (*followers(self.model.module), *self.model.side.teachers))

    def file_facts(self) -> Mapping[str, str | int]:
        """Return the facts for a file of the model."""
        return facts(self.model.module)

    def release_gradient(self) -> None:
        self.model.release_gradient()

    def trim(self) -> None:
        """Return freed memory to the system."""
        self.model.trim()

    def mark(self) -> None:
        """Store the model as the one to restore."""
        self.guard.mark()

    def tensors(self) -> dict[str, Tensor]:
        """Return model, optimiser, buffers, the mixing algorithm's state and the loss scale."""
        return {
            _X: self.replica.settled,
            **{_OPTIMIZER + name: each for name, each in self.means.descent.optimizer.state_dict().items()},
            **{_KNOWN + peer: each for peer, each in self.replica.histories().items()},
            **self.model.side.tensors(),
            **self.means.gradients.scale.tensors(),
        }

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Resume from a checkpoint; the mixing algorithm's state other than the model stays. Raises ValueError: it is another model's."""
        self.replica.check(tensors.get(_X))
        self.model.side.check(tensors)
        self.means.gradients.scale.restore(tensors)
        tensor_file.release(tensors)
        self.means.descent.optimizer.load(named(tensors, _OPTIMIZER), lambda: tensor_file.release(tensors))
        self.model.side.restore(tensors)
        self.replica.install(tensors[_X])
        self.local_step.steps = steps
        self.replica.recall(named(tensors, _KNOWN))
        self.mark()
        tensor_file.release(tensors)

    def rewind(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Return to an earlier state of this model. Flows stay: they belong to edges, and are equal at both ends.

        Raises ValueError: it is another model's; nothing has changed.
        """
        self.replica.check(tensors.get(_X))
        self.means.descent.renew()
        self.means.descent.optimizer.load(named(tensors, _OPTIMIZER))
        self.replica.x.copy_(tensors[_X])
        self.local_step.steps = steps
        self.mark()

    def replaced(self) -> None:
        """Delete the optimiser's state."""
        self.local_step.forget(gradients=False)

    def install(self, offered: Tensor, round: int) -> None:
        """Replace the model by an offered one, in `round`."""
        x = self.replica.scope.whole(offered, self.replica.x)
        self.replica.check(x)
        self.local_step.forget(gradients=True)
        self.rates.joined(round)
        self.replica.install(x)
        self.mark()

    def side_state(self) -> dict[str, Tensor]:
        """Return frozen parameters that change."""
        return self.model.side.given()

    def check_side_state(self, tensors: dict[str, Tensor]) -> None:
        """Raise ValueError unless the tensors are frozen parameters of this model."""
        del tensors[_X]
        self.model.side.check_changing(tensors)

    def take_side_state(self, given: Sequence[Mapping[str, Tensor]]) -> None:
        """Install the median of each parameter."""
        self.model.side.take(given)

    def close(self) -> None:
        """Write the privacy account."""
        self.means.account.write()
