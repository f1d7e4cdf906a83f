"""Local optimisers on flat vectors, and how fast they go in which round.

The mixing algorithm corrects the gradient first (`Mixer.correct`); an optimiser here turns the corrected direction into a step.
Both change the parameters and their own memory in place: at every local step, a copy of the model would cost as much as the
step. A test compares both with `torch.optim`.

Shapes: d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.node.catalogues import OPTIMIZERS
from starling.node.config.schema import OptimizerSection


class Optimizer(Protocol):
    """One node's local optimiser with its memory, which belongs to this node and is never mixed."""

    def step(self, x: Tensor, direction: Tensor, lr: float) -> None:
        """Change x (d,) in place.

        Args:
            x: parameters, detached from autograd.
            direction: (d,) the corrected gradient; not modified.
            lr: this step's rate, >= 0.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """The memory by name, for a checkpoint; shared, not copied."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over the memory of a checkpoint.

        Raises:
            ValueError: it is not the memory of such an optimiser for such a vector.
        """
        ...

    def share(self, state: Mapping[str, Tensor]) -> None:
        """Use these tensors themselves as the memory: for who keeps that of many nodes in one array."""
        ...


@dataclass(slots=True, eq=False)
class Sgd:
    """m ← momentum · m + direction + weight_decay · x; x ← x − lr · m. What torch.optim.SGD does.

    Args:
        like: (d,) a vector whose shape, dtype and device the memory takes.
        momentum: in [0, 1).
        weight_decay: >= 0.
    """

    like: InitVar[Tensor]
    momentum: float = 0.9
    weight_decay: float = 0.0
    _m: Tensor = field(init=False, repr=False)

    def __post_init__(self, like: Tensor) -> None:
        self._m = torch.zeros_like(like)

    def step(self, x: Tensor, direction: Tensor, lr: float) -> None:
        """See `Optimizer.step`."""
        self._m.mul_(self.momentum).add_(direction)
        if self.weight_decay:
            self._m.add_(x, alpha=self.weight_decay)
        x.sub_(self._m, alpha=lr)

    def state_dict(self) -> dict[str, Tensor]:
        """`momentum`: (d,)."""
        return {"momentum": self._m}

    def share(self, state: Mapping[str, Tensor]) -> None:
        """See `Optimizer.share`."""
        self._m = state["momentum"]

    def load(self, state: Mapping[str, Tensor]) -> None:
        """See `Optimizer.load`."""
        _restore(self.state_dict(), state)


@dataclass(slots=True, eq=False)
class AdamW:
    """Adam with weight decay apart from the gradient. What torch.optim.AdamW does.

    Source: Loshchilov and Hutter 2019 (arXiv:1711.05101), Algorithm 2.

    Args:
        like: (d,) a vector whose shape, dtype and device the memory takes.
        weight_decay: >= 0.
        beta_1: decay of the mean of directions, in [0, 1).
        beta_2: decay of the mean of their squares, in [0, 1).
        epsilon: added to the root of the latter.
    """

    like: InitVar[Tensor]
    weight_decay: float = 0.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    _m: Tensor = field(init=False, repr=False)
    _v: Tensor = field(init=False, repr=False)
    _steps: Tensor = field(init=False, repr=False)

    def __post_init__(self, like: Tensor) -> None:
        self._m = torch.zeros_like(like)
        self._v = torch.zeros_like(like)
        self._steps = torch.zeros(1, dtype=torch.int64)

    def step(self, x: Tensor, direction: Tensor, lr: float) -> None:
        """See `Optimizer.step`."""
        self._steps += 1
        steps = int(self._steps)
        if self.weight_decay:
            x.mul_(1.0 - lr * self.weight_decay)
        self._m.lerp_(direction, 1.0 - self.beta_1)
        self._v.mul_(self.beta_2).addcmul_(direction, direction, value=1.0 - self.beta_2)
        root = self._v.sqrt().div_(math.sqrt(1.0 - self.beta_2**steps)).add_(self.epsilon)
        x.addcdiv_(self._m, root, value=-lr / (1.0 - self.beta_1**steps))

    def state_dict(self) -> dict[str, Tensor]:
        """`mean` and `square`: (d,); `steps`: (1,) int64 on the CPU."""
        return {"mean": self._m, "square": self._v, "steps": self._steps}

    def share(self, state: Mapping[str, Tensor]) -> None:
        """See `Optimizer.share`."""
        self._m, self._v, self._steps = state["mean"], state["square"], state["steps"]

    def load(self, state: Mapping[str, Tensor]) -> None:
        """See `Optimizer.load`."""
        _restore(self.state_dict(), state)


def optimizer(section: OptimizerSection, like: Tensor) -> Optimizer:
    """The manifest's optimiser with empty memory for vectors like `like` (d,)."""
    if section.kind == "adamw":
        return AdamW(like, section.weight_decay)
    if section.kind == "sgd":
        return Sgd(like, section.momentum, section.weight_decay)
    return OPTIMIZERS.build("optimizer", section.kind, {"like": like, **section.params}, trusted=True)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rate in each round: it climbs linearly during warm-up, then goes down to floor · lr at the end of the run.

    It is never 0, because the gain of the correction divides by it. An endless run (rounds = 0) stays at lr.

    Args:
        kind: how it goes down.
        lr: highest rate, > 0.
        rounds: length of the run, >= 0.
        warmup: share of the rounds that is warm-up, in [0, 1).
        floor: in (0, 1].
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
    """Factor in (0, 1] on a late joiner's rate: its model is young in the swarm, and its memory is empty.

    Args:
        rounds_since_join: >= 0.
        ramp_rounds: rounds until the full rate; 0 is at once.
    """
    return 1.0 if ramp_rounds == 0 else min(1.0, (rounds_since_join + 1) / ramp_rounds)


def correction_lr(section: OptimizerSection, lr: float) -> float:
    """eta_c of the tracking gain κ·p / (K·eta_c): how far a constant unit gradient moves a coordinate in one local step.

    For sgd that is lr / (1 − momentum). For adamw it depends on the gradients' size, so that the manifest has to say it.

    Args:
        section: a correction_lr above 0 is taken as it is.
        lr: the schedule's rate now, without a late joiner's ramp: both ends of an edge must mean the same.

    Raises:
        ConfigError: adamw without a value.
    """
    if section.correction_lr > 0.0:
        return section.correction_lr
    if section.kind == "adamw":
        raise ConfigError("optimizer.correction_lr: adamw needs a value > 0, a typical lr / (sqrt(v) + eps), got 0")
    return lr / (1.0 - section.momentum)


def _restore(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy all or nothing."""
    if own.keys() != state.keys():
        raise ValueError(f"optimizer state has {sorted(state)}, needed are {sorted(own)}")
    for name, tensor in own.items():
        if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
            raise ValueError(
                f"optimizer state {name} is {state[name].dtype} of shape {tuple(state[name].shape)}, "
                f"needed is {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
    for name, tensor in own.items():
        tensor.copy_(state[name])
