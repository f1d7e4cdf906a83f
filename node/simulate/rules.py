"""Check that a scenario can be simulated, as far as its keys say without torch; called before anything starts."""

import math
from pathlib import Path

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.flows import chosen_kappa, steady_kappa
from starling.gossip.mix.moments import averages_memories
from starling.node.config import consent, presets, script
from starling.node.config import manifest as manifests
from starling.node.config.buffers import averaged
from starling.node.config.overlay import check_members
from starling.node.config.schema import TaskSection
from starling.node.simulate.schema import PATH_TASKS, Scenario, joiners, manifest
from starling.node.simulate.sweep import Cell, title
from starling.robust.attacks.catalogue import ATTACKS

TRACKING = ("gradient_tracking", "beer", "defended_tracking")  # they share a model and a tracker
WHOLE_NODES = 64  # largest number of whole nodes (engine = virtual): each takes some milliseconds of computing per round


def check(cells: tuple[Cell, ...]) -> list[str]:
    """Check the rules between fields of every run -> warnings, one line each, without repetition.

    Raises ConfigError: one run cannot be had; of several, the line says which.
    """
    warnings: dict[str, None] = {}
    for cell in cells:
        try:
            warnings |= dict.fromkeys(check_one(cell.scenario))
        except ConfigError as error:
            raise ConfigError(f"{error} (in the run with {title(cell.labels)})" if cell.labels else str(error)) from error
    return list(warnings)


def check_one(scenario: Scenario) -> list[str]:
    """Rules of one run: those of its manifest, and those of simulation."""
    simulate, faults, pace = scenario.simulate, scenario.faults, scenario.pace
    if script.trains(scenario):
        raise script.refused("task.kind", "a simulation needs a task of its own, try `--set task.kind=digits`")
    if pace.rounds == 0:
        raise ConfigError("pace.rounds: must be >= 1, got 0: a simulation ends; try `--set pace.rounds=200`")
    if faults.loss == 1.0:
        raise ConfigError("faults.loss: must be < 1, got 1: nothing would arrive; try `--set faults.loss=0.3`")
    if faults.churn_until and faults.churn_until <= faults.churn_from:
        raise ConfigError(
            f"faults.churn_until: must be > faults.churn_from = {faults.churn_from}, got {faults.churn_until}; "
            "try `--set faults.churn_until=0`, which is never"
        )
    for begin, end, share in faults.partitions:
        if end <= begin or not 0.0 < share < 1.0:
            raise ConfigError(
                f"faults.partitions: must be [from round, a later round, a share > 0 and < 1], got [{begin}, {end}, {share:g}]; "
                "try `--set faults.partitions=[[100, 150, 0.5]]`"
            )
    if joiners(scenario) > 1_000_000:
        raise ConfigError(f"faults.join: must bring at most 1000000 nodes in all, got {joiners(scenario)}")
    check_files(scenario.task)
    consent.find(scenario, str(Path.cwd()))
    consent.find_module("attack.kind", scenario.attack.kind, str(Path.cwd()))
    presets.check(scenario)
    warnings = manifests.check(manifest(scenario), trusted=True)
    _check_members(scenario)
    if simulate.engine == "virtual":
        _check_whole(scenario)
    else:
        _check_rows(scenario)
    if pace.kind == "sampled" and simulate.engine != "virtual":
        raise ConfigError(
            "pace.kind: in sampled rounds nodes sleep and wake, but all rows of an array do steps; try `--set simulate.engine=virtual`"
        )
    if pace.stop_after and simulate.engine != "virtual":
        raise ConfigError("pace.stop_after: rows of an array are measured together and do not vote; try `--set simulate.engine=virtual`")
    if simulate.running_mean and scenario.optimizer.kind != "sgd":
        raise ConfigError(
            f"simulate.running_mean: applies to sgd's momentum only, got optimizer={scenario.optimizer.kind}; "
            "try `--set simulate.running_mean=false`"
        )
    warnings += _check_attack(scenario) + _check_kappa(scenario)
    if not simulate.model and pace.kind == "clock":
        raise ConfigError("simulate.model: false averages round by round; try `--set pace.kind=steps`")
    return warnings


def _check_rows(scenario: Scenario) -> None:
    """Check that the matrix engine supports the scenario's settings."""
    if averaged(manifest(scenario)):
        raise ConfigError("task.buffers: rows of an array have no buffers of their own, must be local; try `--set simulate.engine=virtual`")
    if scenario.overlay.params().get("choose") == "fast":
        raise ConfigError(
            "overlay.choose: rows of an array do not measure the bandwidth by which edges are chosen; try `--set simulate.engine=virtual`"
        )
    if scenario.pace.overlap:
        raise ConfigError("pace.overlap: rows of an array take their steps and exchanges alternately; try `--set simulate.engine=virtual`")


def check_files(task: TaskSection) -> None:
    """Raise ConfigError for files that are not there, so that they are missed before all runs, not in the middle of them."""
    path = str(task.params().get("path", ""))
    if task.kind in PATH_TASKS and not path:
        raise ConfigError(f"task.path: {task.kind} learns from files, got none; try `--set task.path=PATH`")
    if path and not Path(path).expanduser().exists():
        raise ConfigError(f"task.path: {path!r} does not exist; look with `ls {Path(path).parent}`")


def _check_members(scenario: Scenario) -> None:
    """Check that mixing and overlay support the number of members there will be."""
    nodes, faults, agreed = scenario.simulate.nodes, scenario.faults, manifest(scenario)
    changes = bool(faults.crash or faults.leave or faults.join)
    if changes and MIXERS.facts(scenario.mix.kind, trusted=True).static:
        raise ConfigError(
            f"mix.kind: {scenario.mix.kind} needs a constant mixing matrix, but with faults nodes come and go; "
            "try `--set mix=pet`, or `--set faults.crash=0`"
        )
    check_members(agreed, nodes)
    if changes:
        try:
            check_members(agreed, nodes + 1)
        except ConfigError as error:
            raise ConfigError(f"{error}; nodes come and go here; try `--set overlay=sticky`") from error


def _check_whole(scenario: Scenario) -> None:
    if scenario.simulate.salt:
        raise ConfigError(
            f"simulate.salt: whole nodes order partners by their swarm id, must be empty, got {scenario.simulate.salt!r}; "
            "try `--set simulate.engine=matrix`"
        )
    if scenario.simulate.running_mean:
        raise ConfigError("simulate.running_mean: whole nodes begin with no momentum; try `--set simulate.engine=matrix`")
    if scenario.attack.params:
        raise ConfigError(
            "attack.params: whole nodes use an attack's default parameters, must be empty with engine = virtual; "
            "try `--set attack.params={}`, or simulate.engine=matrix"
        )
    if not scenario.simulate.model:
        raise ConfigError("simulate.model: whole nodes have one; try `--set simulate.engine=matrix`")
    if scenario.simulate.nodes > WHOLE_NODES:
        raise ConfigError(
            f"simulate.nodes: must be <= {WHOLE_NODES} with engine = virtual, got {scenario.simulate.nodes}; "
            "try `--set simulate.engine=matrix`"
        )


def _check_kappa(scenario: Scenario) -> list[str]:
    """Check that flows of so many nodes decay -> warnings. A manifest does not know how many nodes there will be."""
    mix, nodes = scenario.mix, scenario.simulate.nodes
    most = steady_kappa(nodes)
    if mix.kind != "pet" or averages_memories(scenario) or mix.kappa is None or mix.kappa < most:
        return []
    better = f"leave it out, or try `--set mix.kappa={chosen_kappa(nodes):.2g}`"
    return [f"mix.kappa: {mix.kappa:g} is not below {most:g}, from where on flows of {nodes} nodes may grow without end; {better}"]


def _check_attack(scenario: Scenario) -> list[str]:
    """Check that the attackers exist and their attack is possible here -> warnings."""
    attack, nodes = scenario.attack, scenario.simulate.nodes
    if attack.kind:
        ATTACKS.check(attack.kind, "attack.kind")
    if attack.rows and attack.nodes:
        raise ConfigError(
            f"attack.rows: says which nodes are bad, so attack.nodes must be 0, got {attack.nodes}; try `--set attack.nodes=0`"
        )
    if max(attack.rows, default=0) >= nodes or len(set(attack.rows)) < len(attack.rows):
        raise ConfigError(
            f"attack.rows: must name nodes below simulate.nodes = {nodes}, each once, got {list(attack.rows)}; try `--set attack.rows=[0]`"
        )
    bad = len(attack.rows) or attack.nodes
    if bad > nodes - 2:
        raise ConfigError(
            f"attack.nodes: must leave two of simulate.nodes = {nodes} honest, got {bad}; try `--set attack.nodes={max(1, nodes // 5)}`"
        )
    if not bad:
        if attack.kind:
            raise ConfigError(f"attack.nodes: {attack.kind} needs at least one node, got 0; try `--set attack.nodes=1`")
        return []
    if not scenario.simulate.model:
        raise ConfigError("attack.kind: without a model there is nothing to attack; try `--set simulate.model=true`")
    if scenario.mix.kind in {"sparse_outer", "seeds"}:
        raise ConfigError(
            f"attack.kind: attacks on broadcast messages are not simulated, got {attack.kind or 'bad nodes'} with mix={scenario.mix.kind}; "
            "try `--set mix.kind=gather`"
        )
    target = ATTACKS.facts(attack.kind, trusted=True).targets if attack.kind else ""
    if target == "memory" and not averages_memories(scenario):
        raise ConfigError(
            f"attack.kind: {attack.kind} lies about optimiser state, which these nodes do not exchange; try `--set optimizer.kind=adamw`"
        )
    if target == "tracker" and scenario.mix.kind not in TRACKING:
        raise ConfigError(
            f"attack.kind: {attack.kind} lies about the tracker, which mix={scenario.mix.kind} does not exchange; "
            "try `--set mix.kind=gradient_tracking`"
        )
    if scenario.byzantine_fraction and bad > scenario.byzantine_fraction * nodes:
        return [f"attack: {bad} of {nodes} nodes are bad, more than byzantine_fraction = {scenario.byzantine_fraction:g} is meant to stand"]
    return []


def detection_s(scenario: Scenario) -> float:
    """Return the seconds until members detect a crash: a probe of the dead node, its timeout, and the time to refute.

    Each member probes one other in `probe_s`, so the dead node is probed with probability 1 − 1/e in each such period.
    Source: Das, Gupta and Motivala 2002, SWIM (doi:10.1109/DSN.2002.1028914), section 3.2.
    """
    timing = scenario.membership
    return timing.probe_s / (1.0 - 1.0 / math.e) + timing.timeout_s + timing.suspicion_s
