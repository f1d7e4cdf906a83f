"""Swarms of real node processes on loopback, by `starling demo --json`, for every case and seed of a recipe.

Figures of a case `c`, over its seeds:

    c.mean                 mean over seeds of the nodes' mean value (accuracy for digits)
    c.least_mean           the lowest mean of a seed
    c.min                  the worst node of all seeds
    c.wall_s               the longest run, from the first process started to the last model read
    c.bytes_per_exchange   payload bytes a node sends in an exchange
    c.less_than_dense      4 bytes a parameter over the above
    c.bytes_per_node       all that a node sent: payload, framing, repetitions, membership
    c.sent_over_payload    all that was sent over the payload of committed exchanges: more where a busy machine had nodes ask twice
    c.exchanges_per_round  committed exchanges of a node and round

Figures where a case `a` is compared with `b`: `a-b.mean` and `a-b.least` (mean and lowest over seeds of the difference between their
means), `a/b.bytes_per_exchange` and `a/b.bytes_per_node`.

Figures with Byzantine nodes, of all those cases and seeds, counting the honest: `attacked.min`, the worst node, and
`attacked-honest.mean`, the lowest mean less that of the first case, in which all are honest.

Initial model and partition come from the seed. Every run has nodes with new identities, so overlay, batches and rounding differ between
two runs of one seed, and so does what the machine makes late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from benchmarks import facts
from benchmarks.command import starling
from benchmarks.recipes import DemoRecipe
from benchmarks.results import Figures, Run

LEARNED = frozenset({"mean", "least_mean", "min", "least"})
"""Ends of the names of figures of what was learned; all others a clock measures."""
RATIOS = ("bytes_per_exchange", "bytes_per_node")


def measure(recipe: DemoRecipe) -> list[Run]:
    """Run everything, seed by seed, so that a busy spell of the machine hits all cases alike.

    Raises:
        RuntimeError: a demo failed.
    """
    return [run(recipe, case, seed) for seed in recipe.seeds for case in recipe.all_cases]


def run(recipe: DemoRecipe, case: str, seed: int) -> Run:
    """Run one demo; return its output and its settings.

    Raises:
        RuntimeError: it failed; its own words are on standard error.
    """
    before = facts.load()
    table = starling(arguments(recipe, case, seed), f"{case}, seed {seed}")
    return {"case": case, "seed": seed, "load": [before, facts.load()], **table}


def arguments(recipe: DemoRecipe, case: str, seed: int) -> list[str]:
    """Return the command line of one demo, without `starling`."""
    words = ["demo", "--json", "--no-tui", "--nodes", str(recipe.nodes), "--seed", str(seed)]
    if recipe.rounds is not None:
        words += ["--rounds", str(recipe.rounds)]
    if recipe.preset:
        words += ["--preset", recipe.preset]
    if case in recipe.byzantine:
        words += ["--byzantine", recipe.byzantine[case]]
    for assignment in (*recipe.set, *recipe.all_cases[case]):
        words += ["--set", assignment]
    return words


def figures(recipe: DemoRecipe, runs: Sequence[Run]) -> Figures:
    """Return the figures of the runs."""
    by_case = {case: [run for run in runs if run["case"] == case] for case in recipe.all_cases}
    table = {f"{case}.{name}": value for case in by_case for name, value in _figures(by_case[case])}
    table |= dict(_attacked(recipe, by_case))
    return table | _compare(*recipe.compare, by_case, table) if recipe.compare is not None else table


def spread(recipe: DemoRecipe, runs: Sequence[Run]) -> dict[str, float]:
    """Return the standard deviation over seeds of every figure of learning."""
    by_seed = [figures(recipe, [run for run in runs if run["seed"] == seed]) for seed in recipe.seeds]
    learned = [name for name in by_seed[0] if name.rpartition(".")[2] in LEARNED]
    return {name: stdev(each[name] for each in by_seed) for name in learned} if len(by_seed) > 1 else {}


def _figures(runs: Sequence[Run]) -> Iterator[tuple[str, float]]:
    nodes = [node for run in runs for node in run["nodes"]]
    sent, rounds = (sum(node[key] for node in nodes) for key in ("bytes_sent", "rounds"))
    committed = sum(node["exchanges"]["committed"] for node in nodes)
    exchanged = fmean(run["bytes_per_exchange"] for run in runs)
    yield "mean", fmean(run["mean"] for run in runs)
    yield "least_mean", min(run["mean"] for run in runs)
    yield "min", min(run["min"] for run in runs)
    yield "wall_s", max(run["wall_s"] for run in runs)
    yield "bytes_per_exchange", exchanged
    yield "less_than_dense", runs[0]["dense_bytes"] / exchanged
    yield "bytes_per_node", sent / len(nodes)
    yield "sent_over_payload", sent / (exchanged * committed)
    yield "exchanges_per_round", committed / rounds


def _attacked(recipe: DemoRecipe, by_case: Mapping[str, Sequence[Run]]) -> Iterator[tuple[str, float]]:
    attacked = [by_case[case] for case in recipe.byzantine]
    if attacked:
        honest = fmean(run["mean"] for run in by_case[next(iter(recipe.cases))])
        yield "attacked-honest.mean", min(run["mean"] for runs in attacked for run in runs) - honest
        yield "attacked.min", min(run["min"] for runs in attacked for run in runs)


def _compare(a: str, b: str, by_case: Mapping[str, Sequence[Run]], table: Mapping[str, float]) -> dict[str, float]:
    differences = [x["mean"] - y["mean"] for x, y in zip(by_case[a], by_case[b], strict=True)]
    ratios = {f"{a}/{b}.{name}": table[f"{a}.{name}"] / table[f"{b}.{name}"] for name in RATIOS}
    return {f"{a}-{b}.mean": fmean(differences), f"{a}-{b}.least": min(differences), **ratios}
