"""`torch.optim` on the flat parameter vector, its correction by the mixing algorithm, and the learning rate of each round.

`Optimizer.corrected` is the one place where corrections meet the optimiser, `phase` the one place where they meet rates:

    sgd, or a mixing algorithm    the optimiser steps along correct(gradient); c has the units of a gradient, and with sgd a constant c
    that knows no rate            moves a coordinate by eta_c = lr/(1 − momentum) a step
    all others                    the optimiser steps along the gradient, then x <- x − lr·correct(0); c has the units of an update at
                                  rate 1, so eta_c = lr whatever the optimiser makes of gradients

The optimiser's state belongs to this node and is never mixed.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from starling.gossip.api import Phase
from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS, tracks
from starling.node.catalogues import OPTIMIZERS
from starling.node.config.schema import Manifest, OptimizerSection
from starling.node.engine.mixing import mixer

NOT_BY_ROWS = frozenset({"adafactor", "asgd"})
"""Those that look at the vector as a whole or keep scalars that depend on past rates; of all others rows can be stacked."""


Correct = Callable[[Tensor], Tensor]
"""A gradient (…, d) -> the direction that the mixing algorithm wants stepped along instead."""
CLIMB = 10.0  # `Phase.climb` of sgd (decision 23 has measurements)


class Optimizer:
    """A torch optimiser of one flat vector `like` (d,). Raises ConfigError if it cannot step one from a gradient alone (LBFGS, SparseAdam,
    Muon).

    `corrects_updates`: corrections are added to what the optimiser makes of a gradient, not to the gradient. `clip_norm`: longest gradient,
    > 0; None: any.
    """

    def __init__(
        self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], like: Tensor, *, corrects_updates: bool = False,
        clip_norm: float | None = None,
    ) -> None:  # fmt: skip
        self._corrects_updates = corrects_updates
        self._clip_norm = clip_norm
        trial = nn.Parameter(torch.zeros_like(like))
        self._parameter = nn.Parameter(torch.empty_like(like))
        try:
            self._optimizer, tried = make([self._parameter]), make([trial])
            trial.grad = torch.zeros_like(like)
            tried.step()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"optimizer.kind: it cannot step a flat vector: {error}") from error
        self._template = _tensors(tried, trial)

    def corrected(self, gradient: Tensor, correct: Correct) -> tuple[Tensor, Tensor | None]:
        """Direction and shift of a step, each like the gradient (…, d); `correct` is called once.

        It is given the gradient, clipped. Where updates are corrected it is asked what it adds to a direction of 0, which may not depend
        on the direction. There is no shift where it gives back what it was given.
        """
        if self._clip_norm is not None:
            gradient = clipped(gradient, self._clip_norm)
        if not self._corrects_updates:
            return correct(gradient), None
        nothing = torch.zeros_like(gradient)
        shift = correct(nothing)
        return gradient, None if shift is nothing else shift

    def step(self, x: Tensor, direction: Tensor, lr: float, shift: Tensor | None = None) -> None:
        """Change x (d,), detached from autograd, in place along a direction (d,), and then by −lr·shift (d,), at a rate lr >= 0."""
        self._parameter.data, self._parameter.grad = x, direction
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._parameter.grad = None
        if shift is not None:
            x.sub_(shift, alpha=lr)

    def state_dict(self) -> dict[str, Tensor]:
        """The state by torch's names, for a checkpoint; shared, not copied. Empty before the first step."""
        return _tensors(self._optimizer, self._parameter)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over the state of a checkpoint; ValueError if it does not fit, and nothing changed."""
        if state and state.keys() != self._template.keys():
            raise ValueError(f"optimizer state has {sorted(state)}, needed are {sorted(self._template)}")
        for name, tensor in state.items():
            needed = self._template[name]
            if tensor.shape != needed.shape or tensor.dtype != needed.dtype:
                raise ValueError(
                    f"optimizer state {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                    f"needed is {needed.dtype} of shape {tuple(needed.shape)}"
                )
        if state:
            self.share({name: tensor.clone().to(self._template[name].device) for name, tensor in state.items()})

    def share(self, state: Mapping[str, Tensor]) -> None:
        """Use these tensors as the state, changed in place by every step. For simulations of many nodes in one array."""
        self._optimizer.state[self._parameter] = dict(state)


def clipped(gradient: Tensor, norm: float) -> Tensor:
    """Gradients (…, d), each shortened to `norm` > 0 if it is longer. One that is not finite stays so.

    Source: Pascanu, Mikolov and Bengio 2013 (arXiv:1211.5063), as `torch.nn.utils.clip_grad_norm_` without its epsilon.
    """
    lengths = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True, dtype=torch.float64)
    shortened: Tensor = gradient * (norm / lengths.clamp(min=norm)).to(gradient.dtype)
    return shortened


def _tensors(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    return {name: value for name, value in optimizer.state[parameter].items() if isinstance(value, Tensor)}


def optimizer(section: OptimizerSection, like: Tensor, *, corrects_updates: bool = False) -> Optimizer:
    """The section's optimiser with empty state for vectors like `like` (d,); ConfigError for an unknown name or parameter."""
    given = section.params()
    if "beta_1" in given or "beta_2" in given:
        given["betas"] = (given.pop("beta_1", 0.9), given.pop("beta_2", 0.999))

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return OPTIMIZERS.build(
            "optimizer", section.kind, {"params": parameters, "lr": section.lr, **given}, trusted=True
        )

    return Optimizer(make, like, corrects_updates=corrects_updates, clip_norm=section.clip_norm)


def corrects_updates(manifest: Manifest) -> bool:
    """Whether corrections are added to updates: those in units of a rate, with any optimiser but sgd."""
    rated = MIXERS.facts(manifest.mix.kind, trusted=True).rated and not tracks(mixer(manifest).edge)
    return rated and manifest.optimizer.kind != "sgd"


def optimizer_of(manifest: Manifest, like: Tensor) -> Optimizer:
    """The optimiser of a node of this swarm; as `optimizer`."""
    return optimizer(manifest.optimizer, like, corrects_updates=corrects_updates(manifest))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rate in each round: linear warm-up to lr, then decay to floor · lr at the end of the run; lr throughout an endless run.

    It is never 0, because the gain of the correction divides by it: lr > 0, floor in (0, 1]. `warmup` is a share of the rounds, in [0, 1);
    0 rounds are an endless run.
    """

    kind: Literal["constant", "cosine", "linear"]
    lr: float
    rounds: int
    warmup: float = 0.0
    floor: float = 0.05

    def at(self, round: int) -> float:
        """The rate of `round` >= 0; after the last one it stays where it is."""
        if self.rounds == 0:
            return self.lr
        warm = self.warmup * self.rounds
        if round < warm:
            return self.lr * min(1.0, (round + 1) / warm)
        if self.kind == "constant":
            return self.lr
        done = min(1.0, (round - warm) / (self.rounds - warm))
        left = 1.0 - done if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.lr * (self.floor + (1.0 - self.floor) * left)


def schedule(section: OptimizerSection, rounds: int) -> Schedule:
    """The manifest's schedule over `rounds` (0: endless)."""
    return Schedule(section.schedule, section.lr, rounds, section.warmup, section.floor)


def ramp(rounds_since_join: int, ramp_rounds: int) -> float:
    """Factor in (0, 1] on a late joiner's rate, 1 after `ramp_rounds` >= 0: its optimiser's memory is empty."""
    return 1.0 if ramp_rounds == 0 else min(1.0, (rounds_since_join + 1) / ramp_rounds)


def phase(section: OptimizerSection, rates: Schedule, round: int, local_steps: float, ramped: float = 1.0) -> Phase:
    """The phase of a round with its eta_c, where a late joiner's rate is `ramped`, in (0, 1].

    For sgd a constant unit gradient moves a coordinate by lr/(1 − momentum) a step. All others are corrected in units of their updates;
    their flows' gain keeps to the highest rate.
    """
    kept = 1.0 - (section.momentum if section.kind == "sgd" else 0.0)
    return Phase(
        round, local_steps, rates.at(round) * ramped / kept, highest_lr=rates.lr / kept,
        climb=CLIMB if section.kind == "sgd" else 1.0, memory=1.0 / kept,
    )  # fmt: skip
