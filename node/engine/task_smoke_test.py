"""Try the owner's own task once on the model, which is then restored, so that errors are reported before the first round."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.rng import generator
from starling.node.engine.measured_model import MeasuredModel, followers
from starling.node.engine.user_code import describe
from starling.node.tasks.api import Data, Metered, Task
from starling.node.tasks.evaluate import held_out

T = TypeVar("T")
BATCHES = 8  # batches tried until one has a loss


def try_task(kind: str, task: Task, model: nn.Module, data: Data, batch_size: int) -> None:
    """Try batch, loss, gradient and score; the model is restored. Raises ConfigError with file and line of the error."""
    with torch.random.fork_rng(devices=[]), MeasuredModel(model, followers(model)).lent():
        model.train()
        for number in range(BATCHES):
            batch = calling(kind, "data.batch()", lambda at=number: data.batch(batch_size, _chance(at)))  # type: ignore[misc]
            loss = calling(kind, "loss()", lambda given=batch: task.loss(model, given))  # type: ignore[misc]
            if loss is not None:
                break
        check_loss(kind, loss)
        check_weights(kind, model, loss)
        calling(kind, "the gradient of loss()", loss.backward)
        for each in model.parameters():
            each.grad = None
        model.eval()
        with torch.no_grad():
            check_score(kind, task, model, data, batch_size)


def _chance(number: int) -> torch.Generator:
    return generator(0, "rehearsal", *([number] if number else []))


def calling(kind: str, what: str, call: Callable[[], T]) -> T:
    """Return the result of `call`; ConfigError with reason, file and line if it raises."""
    try:
        return call()
    except GossipError:
        raise
    except Exception as error:  # the owner's code may raise anything
        raise ConfigError(f"task.kind: {kind!r}: {what} failed: {describe(error)}") from error


def fresh_model(kind: str, task: Task, seed: int) -> nn.Module:
    """Return the task's model of a seed. Raises ConfigError: it cannot be made, is no module, or has parameters without a shape."""
    model: Any = calling(kind, "model()", lambda: task.model(generator(seed, "model")))
    if not isinstance(model, nn.Module):
        raise ConfigError(f"task.kind: {kind!r}: model() must return an nn.Module, got {type(model).__name__}")
    parameters: dict[str, Any] = dict(model.named_parameters())
    if lazy := [name for name, each in parameters.items() if nn.parameter.is_lazy(each)]:
        raise ConfigError(
            f"task.kind: {kind!r}: {lazy[0]} has no shape before the first forward pass, as of nn.LazyLinear: do one in `model`, with a "
            "batch of the right shape, before it returns the module"
        )
    return model


def check_loss(kind: str, loss: Any) -> None:
    """Raise ConfigError unless `loss` is a scalar tensor with a gradient."""
    if not isinstance(loss, Tensor) or loss.shape != () or not loss.requires_grad:
        given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ConfigError(f"task.kind: {kind!r}: loss() must return a scalar tensor with a gradient, got {given}")


def check_weights(kind: str, model: nn.Module, loss: Tensor) -> None:
    """Raise ConfigError: the loss depends on trainable tensors that are not the model's, such as a criterion's."""
    known = set(map(id, model.parameters()))
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in known:
            raise ConfigError(
                f"task.kind: {kind!r}: loss() has trainable weights that are not the model's, of shape {tuple(leaf.shape)}, which would "
                "not be trained; make them part of the model, or freeze them (requires_grad_(False))"
            )
        waiting += [each for each, _ in node.next_functions]


def check_score(kind: str, task: Task, model: nn.Module, data: Data, batch_size: int) -> None:
    """Measure the model on the first held-out batch, or on all of them where one is not enough. Raises ConfigError: that fails."""
    first = calling(kind, "data.held_out()", lambda: next(iter(held_out(data, batch_size)), None))
    if first is None:
        raise ConfigError(f"task.kind: {kind!r}: data.held_out() gives no batch, it must hold out at least one sample")
    if not isinstance(task, Metered):
        _check_sums(kind, calling(kind, "score()", lambda: task.score(model, first[0])))
        return
    meter = task.meter()
    calling(kind, "the metric", lambda: meter.update(model, *first))
    try:
        fine = not math.isnan(meter.compute().value)
    except Exception:  # noqa: BLE001 — a metric may ask for more than a part of the samples, such as one of each class
        fine = False
    if fine:
        return
    meter = task.meter()
    for batch in held_out(data, batch_size):
        calling(kind, "the metric", lambda given=batch: meter.update(model, *given))  # type: ignore[misc]
    if math.isnan(calling(kind, "the metric", meter.compute).value):
        raise ConfigError(f"task.kind: {kind!r}: the metric of all held-out samples is not a number")


def _check_sums(kind: str, score: Any) -> None:
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
