"""1-bit Adam: after a warm-up the second moment is frozen, and nodes send the signs of their momentum.

Shapes: n nodes, d parameters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.feedback import ErrorFeedback
from starling.gossip.rng import generator


@dataclass(frozen=True, slots=True)
class Step:
    """State after a step."""

    sent: float  # bytes that a node has sent
    model: Tensor  # (d,) of all nodes


def one_bit_adam(
    gradient: Callable[[int, Tensor], Tensor],
    x: Tensor,
    n: int,
    *,
    lr: Callable[[int], float],
    warm_up: int,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> Iterator[Step]:
    """Yield endless steps of n nodes with one common model:

        t < warm_up   g = mean of all g_i, by a ring all-reduce of float32;   Adam
        then          p_i = β1 m + (1 − β1) g_i + e_i,  all others are sent Q(p_i),  e_i <- p_i − Q(p_i);   m <- mean of all Q(p_i)
                      x −= lr·m/(√v + ε) with v as the warm-up left it

    Q is the codec `sign`. Where the paper has a server that compresses the mean a second time, all are sent to all.

    Source: Tang et al. 2021 (arXiv:2102.02888).

    Args:
        gradient: (node, model (d,)) -> (d,) float32.
        x: (d,) where all begin, float32.
        lr: step -> its rate, > 0.
        warm_up: exact steps, >= 1: of none there is no second moment.
    """
    if warm_up < 1:
        raise ValueError(f"warm_up must be >= 1, got {warm_up}")
    return _steps(gradient, x.clone(), n, lr, warm_up, betas, epsilon)


def _steps(
    gradient: Callable[[int, Tensor], Tensor],
    x: Tensor,
    n: int,
    lr: Callable[[int], float],
    warm_up: int,
    betas: tuple[float, float],
    epsilon: float,
) -> Iterator[Step]:
    sign, feedback = quantizer("sign", x.dtype), ErrorFeedback()
    chance = generator(0, "unused")  # the sign draws nothing
    m, v, sent, (first, second) = torch.zeros_like(x), torch.zeros_like(x), 0.0, betas
    states = [feedback.start(x) for _ in range(n)]
    step = 0
    while True:
        gradients = [gradient(node, x) for node in range(n)]
        if step < warm_up:
            mean = torch.stack(gradients).mean(0)
            m, v = first * m + (1.0 - first) * mean, second * v + (1.0 - second) * mean.square()
            sent += 2.0 * (n - 1) / n * 4 * len(x)
            whole, scale = 1.0 - first ** (step + 1), (v / (1.0 - second ** (step + 1))).sqrt() + epsilon
        else:
            messages = []
            for node in range(n):
                update = first * m + (1.0 - first) * gradients[node]
                data = sign.encode(feedback.target(states[node], update), chance)
                messages.append(sign.decode(data, len(x)))
                states[node] = feedback.sent(states[node], update, messages[-1])
            m, whole = torch.stack(messages).mean(0), 1.0
            sent += (n - 1) * sign.size(len(x))
        x = x - lr(step) / whole * m / scale
        step += 1
        yield Step(sent, x.clone())
