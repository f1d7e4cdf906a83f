"""Makes a trainer whose gradients several processes of this machine compute, from the call that opens an engine.

Shapes: d parameters.
"""

import math

from torch import Tensor

from starling.gossip.seeds import derive
from starling.node.engine.local.hooked_step import refuse_hooks
from starling.node.engine.local.placing import model_of, trial_batch
from starling.node.engine.local.task_trainer import TaskTrainer
from starling.node.engine.local.trainer_setup import Setup, gradient_step, setup_of, source_of, task_trainer
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.vectors import GradientWindow
from starling.node.extras.islands.island import Island, check
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Stepped


class IslandBatch:
    """The gradient of a training batch, computed by all ranks of an island, which draw it by its number. Satisfies `GradientSource`."""

    def __init__(self, made: Setup, island: Island) -> None:
        self._made, self.island = made, island

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Draw a batch and compute its gradient."""
        made, model = self._made, self._made.model
        seed = derive(model.manifest.seed, "layers", model.node, step + 1)
        loss = self.island.compute(step, model.x, made.gradients, model.batch(step), into, seed, made.guard.reset_buffers)
        return loss, math.isfinite(loss)

    def forget(self) -> None:
        """Do nothing: there is no state."""


def trainer_of(open_request: Open, _csprng: Csprng, _window: GradientWindow) -> TaskTrainer:
    """Start the other ranks, and return what does steps along the gradients of all. Calls wait for a step, which ranks compute together.

    Raises ConfigError: the manifest or the node's settings cannot be used on this machine, or a rank does not start.
    """
    check(open_request)
    model = model_of(open_request)
    if isinstance(model.task, Stepped):
        refuse_hooks(model.task, "ranks", "other processes compute parts of each batch")
    made, tried = setup_of(open_request, model), trial_batch(model)
    batch = IslandBatch(made, Island(open_request, model.device, model.module, tried, made.gradients.parts))
    return task_trainer(made, gradient_step(made, source_of(made, batch, batch)), long_steps=False)
