"""Distillation across architectures: nodes with different models label shared inputs, and learn from each other's labels.

Shapes: z shared inputs, C classes, k peers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, softmax

from starling.gossip.rng import generator

LEVELS = 255  # levels of a transmitted probability: one byte
SHARPNESS, LEAST = 4, 1e-6


def published(logits: Tensor, temperature: float) -> Tensor:
    """Return logits (z, C) as the probabilities that others decode: bytes, with normalised rows."""
    levels = (softmax(logits / temperature, -1) * LEVELS).round()
    shares: Tensor = levels / levels.sum(-1, keepdim=True).clamp_min(1.0)
    return shares


def certainty(predictions: Tensor) -> Tensor:
    """Return (…) from (…, C): 1 where a row is certain of a class, nearly 0 where it is uniform."""
    entropy = -(predictions * predictions.clamp_min(1e-9).log()).sum(-1)
    return (1.0 - entropy / math.log(predictions.shape[-1])).clamp_min(0.0) ** SHARPNESS + LEAST


def target(predictions: Tensor, *, weighted: bool = True) -> Tensor:
    """Return the mean (z, C) of the predictions of k nodes (k, z, C), weighted by certainty if `weighted`."""
    weights = certainty(predictions) if weighted else predictions.new_ones(predictions.shape[:-1])
    mixed = (predictions * weights[..., None]).sum(0)
    return mixed / mixed.sum(-1, keepdim=True).clamp_min(1e-12)


def ensemble(models: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return the mean of the logits (m, C) of experts that were never mixed.

    Source: HDEE, heterogeneous domain expert ensembles, 2025.
    """
    with torch.no_grad():
        return torch.stack([model(x) for model in models]).mean(0)


@dataclass(frozen=True, slots=True)
class Taught:
    """State after a round."""

    received: int  # bytes that a node received, so far
    models: Sequence[nn.Module]


def teaching(
    models: Sequence[nn.Module],
    loss: Callable[[int, nn.Module], Tensor],
    probes: Tensor,
    *,
    lr: float,
    steps: int,
    peers: int,
    seed: int,
    temperature: float = 2.0,
    alpha: float = 1.0,
    batch: int = 32,
    weighted: bool = True,
) -> Iterator[Taught]:
    """Yield endless rounds. In each a node does K local steps along its own loss and

        α T² KL(M_i ‖ softmax(f_i(z)/T))   on `batch` of the shared inputs z, T the temperature

    and publishes its probabilities of all of them; then M_i is the `target` of its own and those of so many others, drawn anew.

    Sources: FedMD, Li and Wang 2019 (arXiv:1910.03581); distillation, Hinton et al. 2015 (arXiv:1503.02531). Weights by certainty: ours.

    Args:
        models: of each node, in any architecture, changed in place; all give C logits of an input.
        loss: (node, its model) -> scalar, of a batch of its own.
        probes: (z, …) inputs that all have, nobody's training data.
        peers: asked in a round, in [0, n − 1]; 0: all learn alone.
        temperature: in [1, 10].
    """
    if not 0 <= peers < len(models):
        raise ValueError(f"peers must be in [0, n - 1 = {len(models) - 1}], got {peers}")
    if not 1.0 <= temperature <= 10.0:
        raise ValueError(f"temperature must be in [1, 10], got {temperature}")
    return _rounds(models, loss, probes, (lr, steps, peers, temperature, alpha, batch), seed, weighted=weighted)


def _rounds(
    models: Sequence[nn.Module],
    loss: Callable[[int, nn.Module], Tensor],
    probes: Tensor,
    settings: tuple[float, int, int, float, float, int],
    seed: int,
    *,
    weighted: bool,
) -> Iterator[Taught]:
    lr, steps, peers, temperature, alpha, batch = settings
    chance, received = generator(seed, "teaching"), 0
    targets: list[Tensor | None] = [None] * len(models)
    optimizers = [torch.optim.SGD(model.parameters(), lr) for model in models]
    while True:
        for node, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for _ in range(steps):
                drawn = torch.randint(len(probes), (batch,), generator=chance)
                optimizer.zero_grad()
                whole = loss(node, model)
                if (wanted := targets[node]) is not None:
                    said = log_softmax(model(probes[drawn]) / temperature, -1)
                    whole = whole + alpha * temperature**2 * kl_div(said, wanted[drawn], reduction="batchmean")
                torch.autograd.backward([whole])
                optimizer.step()
        if peers:
            with torch.no_grad():
                predictions = torch.stack([published(model(probes), temperature) for model in models])
            for node in range(len(models)):
                others = [other for other in torch.randperm(len(models), generator=chance).tolist() if other != node]
                targets[node] = target(predictions[[node, *others[:peers]]], weighted=weighted)
            received += peers * predictions[0].numel()
        yield Taught(received, models)
