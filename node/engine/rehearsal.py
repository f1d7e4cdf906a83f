"""A trial of the owner's own task on a copy of the model, so that its errors are reported before the first round."""

import copy
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.rng import generator
from starling.node.engine.own_code import describe
from starling.node.tasks.api import Data, Task

T = TypeVar("T")


def rehearse(kind: str, task: Task, model: nn.Module, data: Data, batch_size: int) -> None:
    """Try batch, loss, gradient and score, without side effects. Raises ConfigError with file and line of what is wrong."""
    tried = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        tried.train()
        batch = calling(kind, "data.batch()", lambda: data.batch(batch_size, generator(0, "rehearsal")))
        check_loss(kind, calling(kind, "loss()", lambda: task.loss(tried, batch)))
        calling(kind, "the gradient of loss()", lambda: task.loss(tried, batch).backward())  # type: ignore[no-untyped-call]
        tried.eval()
        held_out = calling(kind, "data.held_out()", lambda: next(iter(data.held_out(batch_size)), None))
        if held_out is None:
            raise ConfigError(
                f"task.kind: {kind!r}: data.held_out() gives no batch, it must hold out at least one sample"
            )
        with torch.no_grad():
            check_score(kind, calling(kind, "score()", lambda: task.score(tried, held_out)))


def calling(kind: str, what: str, call: Callable[[], T]) -> T:
    """The result of `call`; ConfigError with reason, file and line if it raises."""
    try:
        return call()
    except GossipError:
        raise
    except Exception as error:  # the owner's code may raise anything
        raise ConfigError(f"task.kind: {kind!r}: {what} failed: {describe(error)}") from error


def check_loss(kind: str, loss: Any) -> None:
    """Raises ConfigError unless `loss` is a scalar tensor with a gradient."""
    if not isinstance(loss, Tensor) or loss.shape != () or not loss.requires_grad:
        given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ConfigError(f"task.kind: {kind!r}: loss() must return a scalar tensor with a gradient, got {given}")


def check_score(kind: str, score: Any) -> None:
    """Raises ConfigError unless `score` is (sum of the metric, sum of the loss, samples >= 1)."""
    right = (
        isinstance(score, tuple)
        and len(score) == 3
        and all(isinstance(part, int | float) and not isinstance(part, bool) for part in score)
        and not math.isnan(score[0])
        and score[2] >= 1
    )
    if not right:
        raise ConfigError(
            f"task.kind: {kind!r}: score() must return (sum of the metric, sum of the loss, samples) as numbers, got {score!r:.80}"
        )
