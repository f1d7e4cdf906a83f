"""Local steps along drawn directions, as far as two losses say (`mix.kind = "seeds"`).

Shapes: d parameters.
"""

from typing import Any

import torch

from starling.gossip.errors import ConfigError
from starling.gossip.mix.seeds import MOST_NUMBERS, Seeds, slope
from starling.node.config.schema import NumericsSection
from starling.node.engine.local.hooked_step import refuse_hooks
from starling.node.engine.local.placing import model_of
from starling.node.engine.local.task_trainer import TaskTrainer
from starling.node.engine.local.trainer_setup import Setup, setup_of, task_trainer
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Stepped


class SeedsStep:
    """A step along a drawn direction. Satisfies `LocalStep`."""

    def __init__(self, made: Setup, seeds: Seeds) -> None:
        self._model, self._replica, self._rates, self._seeds = made.model, made.replica, made.rates, seeds
        self.steps = self.undone = 0

    def __call__(self, round: int) -> float | None:
        """Compute both losses; return their mean, or None if they are not finite and the step was skipped."""
        model, replica, seeds = self._model, self._replica, self._seeds
        batch = model.batch(self.steps)
        self.steps += 1
        state: Any = replica.state
        direction = seeds.direction(model.node, round, int(state.done), model.x)
        both = torch.stack((model.x + seeds.epsilon * direction, model.x - seeds.epsilon * direction))
        losses = model.losses(batch, both)
        scalar = self._rates.at(round) * slope(losses, seeds.epsilon)
        if not (is_finite := bool(torch.isfinite(scalar))):
            self.undone += 1
            scalar = torch.zeros_like(scalar)
        _, replica.state = seeds.correct(state, scalar)
        model.x.sub_(scalar * direction)
        return float(losses.mean()) if is_finite else None

    def forget(self, *, gradients: bool) -> None:
        """Do nothing: there is no state."""


def trainer_of(open_request: Open, _csprng: Csprng, _window: GradientWindow) -> TaskTrainer:
    """Return what does such steps.

    Raises ConfigError: the manifest cannot be used on this machine, a setting would be ignored, or steps would take too long.
    """
    if open_request.privacy.noise or open_request.numerics != NumericsSection() or open_request.ranks > 1:
        raise ConfigError(
            "mix.kind: seeds computes losses but no gradients, so privacy.noise, numerics and ranks have no effect; leave them out"
        )
    model = model_of(open_request)
    if isinstance(model.task, Stepped):
        refuse_hooks(model.task, "mix.kind", "steps of seeds compute losses and no gradient")
    members, dim = open_request.manifest.pace.quorum, model.layout.dim
    if members * dim > MOST_NUMBERS:
        raise ConfigError(
            f"mix.kind: with seeds {members} nodes draw {members * dim:,} signs a step, which must be <= {MOST_NUMBERS:,}; "
            "try adapters (starling.adapters.lora), which train fewer parameters"
        )
    made = setup_of(open_request, model)
    mixer = made.replica.mixer
    assert isinstance(mixer, Seeds)
    return task_trainer(made, SeedsStep(made, mixer), long_steps=model.large)
