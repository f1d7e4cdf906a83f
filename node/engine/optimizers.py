"""`torch.optim` on the flat parameter vector, and the learning rate of each round.

The mixing algorithm corrects the gradient first (`Mixer.correct`); the optimiser turns the corrected direction into a step. Its state
belongs to this node and is never mixed.

Shapes: d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.catalogues import OPTIMIZERS
from starling.node.config.schema import OptimizerSection

NOT_BY_ROWS = frozenset({"adafactor", "asgd"})
"""Those that look at the vector as a whole or keep scalars that depend on past rates; of all others rows can be stacked."""


class Optimizer:
    """A torch optimiser of one flat vector. Raises ConfigError if it cannot step a vector from a gradient alone (LBFGS, SparseAdam, Muon).

    Args:
        make: parameters -> the optimiser.
        like: (d,) gives the state's shape, dtype and device.
    """

    def __init__(self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], like: Tensor) -> None:
        trial = nn.Parameter(torch.zeros_like(like))
        self._parameter = nn.Parameter(torch.empty_like(like))
        try:
            self._optimizer, tried = make([self._parameter]), make([trial])
            trial.grad = torch.zeros_like(like)
            tried.step()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"optimizer.kind: it cannot step a flat vector: {error}") from error
        self._template = _tensors(tried, trial)

    def step(self, x: Tensor, direction: Tensor, lr: float) -> None:
        """Change x (d,), detached from autograd, in place along the corrected gradient (d,), at a rate lr >= 0."""
        self._parameter.data, self._parameter.grad = x, direction
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._parameter.grad = None

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


def _tensors(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    return {name: value for name, value in optimizer.state[parameter].items() if isinstance(value, Tensor)}


def optimizer(section: OptimizerSection, like: Tensor) -> Optimizer:
    """The manifest's optimiser with empty state for vectors like `like` (d,); ConfigError for an unknown name or parameter."""
    given = section.params()
    if "beta_1" in given or "beta_2" in given:
        given["betas"] = (given.pop("beta_1", 0.9), given.pop("beta_2", 0.999))

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return OPTIMIZERS.build(
            "optimizer", section.kind, {"params": parameters, "lr": section.lr, **given}, trusted=True
        )

    return Optimizer(make, like)


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


def correction_lr(section: OptimizerSection, lr: float) -> float:
    """eta_c of the tracking gain κ·p / (K·eta_c): how far a constant unit gradient moves a coordinate in one local step.

    For sgd that is lr / (1 − momentum). For others it depends on the gradients' size, so that the manifest has to give it.

    A configured value > 0 is used as it is; `lr` is without a late joiner's ramp: equal at both ends of an edge.
    """
    if section.correction_lr is not None:
        return section.correction_lr
    if section.kind != "sgd":
        raise ConfigError(
            f"optimizer.correction_lr: {section.kind} needs a value > 0, a typical lr / (sqrt(v) + eps), got none"
        )
    rate: float = lr / (1.0 - section.momentum)
    return rate
