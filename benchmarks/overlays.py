"""Overlays by arithmetic: `starling overlay show` and `starling overlay compare`, for every case, size and seed of a recipe.

Figures of a case `c` with n members, over its seeds:

    c@n.left                 ‖∏W − J‖ after a period: the worst that is left of a disagreement; none where there is no period
    c@n.exact_rounds         rounds after which nothing is left, none if there is no such number
    c@n.messages             vectors that a node sends in a round
    c@n.decades              powers of ten that ‖x − x̄‖ loses in a round, up to the first round at or below 1e-9 or else to the end
    c@n.decades_per_message  the same for a message that a node sends

Gaussian numbers are mixed, the same for all cases of a seed. Rounding ends what is exact at about 1e-16, so `decades` is 16 over the
number of rounds there. Messages are counted with W as the overlay has it; nodes symmetrise what is directed, and send twice as many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from benchmarks.command import starling
from benchmarks.recipes import OverlaysRecipe
from benchmarks.results import Figures, Run

REACHED = 1e-9
_LEAST = 1e-16  # relative rounding of double precision


def measure(recipe: OverlaysRecipe) -> list[Run]:
    """Run everything.

    Raises:
        RuntimeError: a command failed.
    """
    return [run(recipe, case, n, seed) for case in recipe.cases for n in recipe.sizes for seed in recipe.seeds]


def run(recipe: OverlaysRecipe, case: str, n: int, seed: int) -> Run:
    """Compute one overlay of one size: its facts, and its mixing.

    Raises:
        RuntimeError: a command failed.
    """
    kind = recipe.cases[case].kind
    shown = starling(show(recipe, case, n, seed), f"{case}, n = {n}, seed {seed}")
    walk = starling(compare(recipe, case, n, seed), f"{case}, n = {n}, seed {seed}")["kinds"][kind]
    return {
        "case": case,
        "n": n,
        "seed": seed,
        **{key: shown[key] for key in ("period", "finite_time_rounds", "left_after_measured_rounds")},
        "messages": shown["messages_per_node_and_round"],
        "consensus_error": [float(f"{error:.6g}") for error in walk["consensus_error"]],
        "messages_per_node": [float(f"{count:.6g}") for count in walk["messages_per_node"]],
    }


def show(recipe: OverlaysRecipe, case: str, n: int, seed: int) -> list[str]:
    """Return the command line that measures an overlay, without `starling`."""
    asked = recipe.cases[case]
    return ["overlay", "show", asked.kind, "-n", str(n), "--k", str(asked.k), "--seed", str(seed), "--json"]


def compare(recipe: OverlaysRecipe, case: str, n: int, seed: int) -> list[str]:
    """Return the command line that mixes, without `starling`."""
    asked = recipe.cases[case]
    options = {"-n": n, "--kinds": asked.kind, "--k": asked.k, "--rounds": recipe.rounds, "--seed": seed}
    return ["overlay", "compare", *(str(word) for option in options.items() for word in option), "--json"]


def figures(recipe: OverlaysRecipe, runs: Sequence[Run]) -> Figures:
    """Return the figures of the runs."""
    table: Figures = {}
    for n in recipe.sizes:
        for case in recipe.cases:
            of_case = [run for run in runs if run["case"] == case and run["n"] == n]
            table |= {f"{case}@{n}.{name}": value for name, value in _figures(of_case)}
    return table


def _figures(runs: Sequence[Run]) -> Iterator[tuple[str, float | None]]:
    first = runs[0]
    ends = [_end(run) for run in runs]
    yield "left", first["left_after_measured_rounds"] if first["period"] else None
    yield "exact_rounds", first["finite_time_rounds"]
    yield "messages", fmean(run["messages"] for run in runs)
    yield "decades", fmean(decades / rounds for decades, rounds, _ in ends)
    yield "decades_per_message", fmean(decades / messages for decades, _, messages in ends)


def _end(run: Run) -> tuple[float, int, float]:
    """Return (powers of ten lost by the distance, rounds, messages), where the distance is first down to 1e-9."""
    distances = [max(math.sqrt(error), _LEAST) for error in run["consensus_error"]]
    last = next((t for t, distance in enumerate(distances) if distance <= REACHED), len(distances) - 1)
    return -math.log10(distances[last]), last, run["messages_per_node"][last]
