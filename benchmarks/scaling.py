"""Cost of a simulated node's round by the number of nodes: `python -m benchmarks.node_rounds`, several times.

Figures:

    n_N.us_per_node_round   processor time in 10^-6 s, the least of the repetitions; another process's work is not in it
    n.growth                cost among the most nodes over that among the fewest: 1 is flat
    n.spread                the dearest number of nodes over the cheapest
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import facts
from benchmarks.recipes import NodeRoundRecipe
from benchmarks.results import Figures, Run


def measure(recipe: NodeRoundRecipe) -> list[Run]:
    """Measure all numbers of nodes, and repeat them all, so that a busy spell of the machine affects all alike.

    Raises:
        RuntimeError: it failed.
    """
    return [run for _ in range(recipe.repeats) for run in _runs(recipe)]


def _runs(recipe: NodeRoundRecipe) -> list[Run]:
    before = facts.load()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.node_rounds", *arguments(recipe)],
        stdout=subprocess.PIPE,
        env=facts.environment(),
        cwd=facts.ROOT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"benchmarks.node_rounds ended with {done.returncode}")
    return [{"load": before, **json.loads(line)} for line in done.stdout.splitlines()]


def arguments(recipe: NodeRoundRecipe) -> list[str]:
    """Return the arguments of `benchmarks.node_rounds`."""
    options = {"--nodes": ",".join(map(str, recipe.nodes)), "--dim": recipe.dim, "--rounds": recipe.rounds}
    return [str(word) for option in options.items() for word in option]


def figures(recipe: NodeRoundRecipe, runs: Sequence[Run]) -> Figures:
    """Return the figures of the runs."""
    least = {n: min(run["us_per_node_round"] for run in runs if run["nodes"] == n) for n in recipe.nodes}
    table: Figures = {f"n_{n}.us_per_node_round": cost for n, cost in least.items()}
    growth, spread = least[max(least)] / least[min(least)], max(least.values()) / min(least.values())
    return table | {"n.growth": growth, "n.spread": spread}
