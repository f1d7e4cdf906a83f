"""Memory of a transformer in training: bytes per parameter, and activations that a forward pass stores for the backward pass.

A block has 12 h² parameters (attention 4 h², feed-forward 8 h²), the two tables v h each; norms and biases are less than 1 %.
Activations are counted as float32. Sources: the counts of Korthikanti et al. 2022 (arXiv:2205.05198) for a block, with what PyTorch
stores where attention is fused; `published_floats` is the estimate that planners for crowds of volunteers use.
"""

from __future__ import annotations

from starling.node.config.memory_estimate import EXCHANGE, MODEL, PARTS, of_flows
from starling.node.plan.schema import ModelSection, TrainSection

MOMENTS = {"sgd": 0, "momentum": 4, "adamw": 8}
KEPT = 15.0  # float32 numbers that a block retains per s · h, with fused attention
KEPT_RECOMPUTED = 2.0  # the block's input, and one recomputed block spread over all
KEPT_SCORES = {  # numbers for each attention score; with dropout also its mask and result
    "fused": 0.0,
    "stored": 1.0,
    "dropout": 3.0,
}


def parameters(model: ModelSection) -> int:
    """Return the number of parameters of the whole model."""
    return 12 * model.layers * model.hidden**2 + 2 * model.vocab * model.hidden


def bytes_per_parameter(train: TrainSection) -> float:
    """Return the peak bytes per parameter, in an exchange of whole vectors; docs/memory.md has the measurements."""
    moments = MOMENTS[train.optimizer] * (PARTS[train.moments] if train.optimizer == "adamw" else 1.0)
    keeps_flows = train.mix == "pet" and train.optimizer != "adamw"
    return MODEL + moments + (of_flows(train.flows, train.degree) if keeps_flows else 0.0) + EXCHANGE


def activations(model: ModelSection, train: TrainSection, blocks: int, live: int) -> int:
    """Return the bytes of activations of `live` micro-batches in this many blocks."""
    scores = KEPT_SCORES[train.scores] * model.sequence * model.heads / model.hidden
    stored = KEPT_RECOMPUTED if train.recompute else KEPT + scores
    return round(4 * live * train.micro_batch * model.sequence * model.hidden * stored * blocks)


def logits(model: ModelSection, train: TrainSection) -> int:
    """Bytes of the last layer's output and its gradient."""
    return 8 * train.micro_batch * model.sequence * model.vocab


def needed(model: ModelSection, train: TrainSection, first: int, last: int, live: int, reserve: int) -> int:
    """Bytes of a machine with blocks `first` to `last`, that one excluded. The first has the input table, the last the output's.

    Args:
        live: micro-batches whose activations are in memory at a time, >= 1.
        reserve: bytes that the process takes without a model.
    """
    tables = (first == 0) + (last == model.layers)
    share = 12 * (last - first) * model.hidden**2 + tables * model.vocab * model.hidden
    head = logits(model, train) if last == model.layers else 0
    return round(bytes_per_parameter(train) * share) + activations(model, train, last - first, live) + head + reserve
