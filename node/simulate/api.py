"""Simulation from Python: `starling.simulate(...)`. Importing it loads no torch; computing in this process does."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from starling.gossip.errors import ConfigError
from starling.node.config import toml
from starling.node.config.assignments import assignments
from starling.node.simulate import rules, sweep
from starling.node.simulate.executors import Processes
from starling.node.simulate.runs import Runs, Show, Sweep
from starling.node.simulate.schema import Scenario


def simulate(
    scenario: Scenario | str | Path | None = None,
    *,
    task: str | None = None,
    mix: str | None = None,
    overlay: str | None = None,
    nodes: int | None = None,
    rounds: int | None = None,
    engine: Literal["matrix", "virtual"] | None = None,
    seeds: Sequence[int] | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    progress: Show | None = None,
) -> Runs:
    """Simulate a swarm, or a sweep of swarms.

    Args:
        scenario: what to start from: a `Scenario`, the path of a TOML file, or None for the defaults.
        task: `task.kind`, e.g. "digits".
        mix: `mix.kind`, the mixing algorithm, e.g. "pet".
        overlay: `overlay.kind`, e.g. "sticky".
        nodes: `simulate.nodes`.
        rounds: `pace.rounds`.
        engine: `simulate.engine`: "matrix" for thousands of nodes as rows of one array, "virtual" for whole nodes in virtual time.
        seeds: `sweep.seeds`, one run each.
        preset: "vouched", "open" or "custom".
        set: any other keys, dotted, e.g. {"mix.kappa": 0.05, "sweep.grid": {"mix.kind": ["pet", "dsgd"]}}; wins over all others.
        jobs: processes; 1 computes in this process. More need the usual `if __name__ == "__main__":` in a script.
        executor: computes the runs instead of `jobs`, e.g. that of a `dask.distributed.Client`. It is not shut down.
        progress: called with the fraction done, in [0, 1], and one line.

    Returns:
        The runs that finished, and those that failed with their reasons.

    Raises:
        ConfigError: a wrong key or value, or a run that cannot be had.
        GossipError: no run finished; the reason of the first.
    """
    if jobs < 1:
        raise ConfigError(f"jobs: must be >= 1, got {jobs}")
    given = {
        "task": task,
        "mix": mix,
        "overlay": overlay,
        "simulate.nodes": nodes,
        "pace.rounds": rounds,
        "simulate.engine": engine,
        "sweep.seeds": seeds,
        "preset": preset,
        **(set or {}),
    }
    if isinstance(scenario, Scenario):
        begun = toml.apply_set(scenario, assignments(given))
        cells = sweep.cells(begun)
    else:
        begun, cells = sweep.read(None if scenario is None else Path(scenario), assignments(given))
    rules.check(cells)
    with ExitStack() as stack:
        if executor is None and jobs > 1:
            executor = stack.enter_context(Processes(jobs, begun.simulate.threads))
        under_way = Sweep(cells, executor, progress)
        under_way.check()
        under_way.run()
    runs = under_way.runs(begun)
    if not runs.finished:
        raise runs.failed[0].failure.error()
    return runs
