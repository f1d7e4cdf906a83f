"""BlueFog's tutorials as calls of `simulate`: one function each, which returns the figures that the tutorial is about.

    python tutorials.py            all of them, in a table

Ying et al. 2021, BlueFog (arXiv:2111.04287). Sixteen nodes, as there; `nodes` and `rounds` may be smaller.
"""

import sys
from collections.abc import Callable

from starling.node.simulate.api import simulate

EXACT = {"compress.select": "full", "compress.request": "identity", "compress.response": "identity", "mix.clip_norm": 0.0}
PLAIN = EXACT | {"optimizer.momentum": 0, "optimizer.schedule": "constant", "pace.local_steps": 1}


def last(runs) -> float:
    """The metric at the end: mean over nodes, and over seeds."""
    ends = [run.outcome.rows[-1].mean for run in runs.finished]
    return sum(ends) / len(ends)


def bowls(mix: str, overlay: str, nodes: int, rounds: int, lr: float = 0.1, **more) -> float:
    """Decentralised least squares: squared relative error of quadratics whose minima differ."""
    keys = PLAIN | {"task.dim": 20, "task.dtype": "float64", "optimizer.lr": lr, "pace.evaluate_every": rounds} | more
    return last(simulate(task="quadratic", mix=mix, overlay=overlay, nodes=nodes, rounds=rounds, set=keys))


def average_consensus(nodes: int = 16, rounds: int = 100) -> dict[str, float]:
    """A random number each, averaged: Ξ² over what it was. Exact after log2 n rounds of a one-peer exponential graph, slow on a ring."""
    return {
        overlay: last(
            simulate(overlay=overlay, mix="dsgd", nodes=nodes, rounds=rounds, set={"simulate.model": False, "pace.evaluate_every": rounds})
        )
        for overlay in ("ring", "static_exponential", "one_peer_exponential")
    }


def push_sum(nodes: int = 12, rounds: int = 400) -> dict[str, float]:
    """A directed overlay of a number of nodes that is no power of two: push-sum has the floor of averaging with weights that sum to 1."""
    return {mix: bowls(mix, "one_peer_exponential", nodes, rounds, lr=0.02) for mix in ("dsgd", "push_sum")}


def gradient_tracking(nodes: int = 16, rounds: int = 600) -> dict[str, float]:
    """DSGD stops where its nodes' gradients differ, tracking at the optimum."""
    return {mix: bowls(mix, "static_exponential", nodes, rounds) for mix in ("dsgd", "gradient_tracking")}


def exact_diffusion(nodes: int = 16, rounds: int = 600) -> dict[str, float]:
    """The same by one vector a round, on an overlay that never changes."""
    return {mix: bowls(mix, "ring", nodes, rounds) for mix in ("dsgd", "exact_diffusion", "d2")}


def logistic_regression(nodes: int = 8, rounds: int = 600) -> dict[str, float]:
    """Labels unevenly among nodes: squared relative error of the weights."""
    keys = PLAIN | {"task.dim": 10, "task.mu": 0.1, "task.samples": 50, "task.dtype": "float64", "task.batch_size": 64, "optimizer.lr": 0.5}
    keys |= {"pace.evaluate_every": rounds}
    return {
        mix: last(simulate(task="logistic", mix=mix, overlay="ring", nodes=nodes, rounds=rounds, set=keys))
        for mix in ("dsgd", "gradient_tracking", "exact_diffusion")
    }


def deep_learning(nodes: int = 8, rounds: int = 60) -> dict[str, float]:
    """A small network on digits, labels in unequal shares: accuracy."""
    keys = {"task.hidden": 32, "pace.local_steps": 5, "optimizer.lr": 0.05, "pace.evaluate_every": rounds, "partition.alpha": 0.3}
    return {
        mix: last(simulate(task="digits", mix=mix, overlay="one_peer_exponential", nodes=nodes, rounds=rounds, set=keys))
        for mix in ("dsgd", "gradient_tracking", "pet")
    }


TUTORIALS: tuple[Callable[..., dict[str, float]], ...] = (
    average_consensus,
    push_sum,
    gradient_tracking,
    exact_diffusion,
    logistic_regression,
    deep_learning,
)

if __name__ == "__main__":
    for tutorial in TUTORIALS:
        figures = (f"  {name:22s} {figure:.2e}" for name, figure in tutorial().items())
        sys.stdout.write("\n".join([tutorial.__name__.replace("_", " "), *figures, ""]))
