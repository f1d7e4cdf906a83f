"""Rules for swarms that are trained by their members' own scripts (`task.kind = "script"`). Torch-free.

A script makes the model, reads the data and takes the local steps. Of its model a node knows names and shapes of the trained parameters,
and their values after local steps; it has neither a module nor gradients, batches or buffers.
"""

from typing import Any

from starling.gossip.errors import ConfigError
from starling.node.config.schema import Manifest, NodeConfig, NumericsSection

KIND = "script"
"""Name of the task."""
MIXES = ("pet", "moments", "dsgd", "gather", "outer", "sparse_outer", "psgd", "choco", "push_sum")
"""Mixing algorithms whose local steps are those of a plain optimiser."""


def trains(agreed: Any) -> bool:
    """Return whether the members of a swarm, given its manifest or scenario, train by scripts."""
    kind: str = agreed.task.kind
    return kind == KIND


def does_steps(config: NodeConfig, manifest: Manifest) -> bool:
    """Return whether the local steps of a node are done by a script: in a swarm of scripts, and where its owner has one."""
    return config.script or trains(manifest)


def refused(key: str, instead: str) -> ConfigError:
    """Return the error of a command that would make the task's model; `instead`: the next command."""
    return ConfigError(f"{key}: task={KIND} is trained by its members' scripts, which only they have; {instead}")


def check(manifest: Manifest) -> None:
    """Raise ConfigError where a swarm of scripts needs more of them than their parameters, or settings would be ignored."""
    if trains(manifest):
        check_steps(manifest)


def check_steps(manifest: Manifest) -> None:
    """Raise ConfigError where a manifest needs more of a script than its parameters, or settings would be ignored."""
    task, mix, section = manifest.task, manifest.mix, manifest.optimizer
    if mix.kind not in MIXES:
        raise ConfigError(
            f"mix.kind: {mix.kind} changes gradients in a way that scripts do not support, must be one of {', '.join(MIXES)} where "
            f"scripts train; try `--set mix.kind=pet`"
        )
    refusals: tuple[tuple[str, bool, str], ...] = (
        ("crew.stages=1", manifest.crew.stages > 1, "each script has the whole model"),
        ("pace.kind=steps", manifest.pace.kind == "sampled", "a script takes its steps in every round"),
        ("task.buffers=local", task.buffers not in {None, "local"}, "buffers stay with the script that has them"),
        ("optimizer.sam=0", section.sam > 0, "the script's optimiser takes the steps"),
        ("optimizer.gradient=plain", section.gradient != "plain", "the script's optimiser takes the steps"),
        ("mix.own=0", mix.own > 0, "samples are the script's, which sets none aside"),
        ("mix.turns=[]", bool(mix.turns), "a script trains all of its parameters in every round"),
        ("mix.typical_samples=null", mix.typical_samples is not None, "gradients are the script's, and not weighted"),
    )
    for wanted, given, why in refusals:
        if given:
            key, _, value = wanted.partition("=")
            raise ConfigError(f"{key}: {why}, must be {value} where scripts train; leave it out, or try `--set {wanted}`")


def check_node(config: NodeConfig, manifest: Manifest) -> None:
    """Raise ConfigError where a node's own settings are about local steps, which a script takes."""
    if not does_steps(config, manifest):
        return
    check_steps(manifest)
    devices = "a script computes on the devices that it chooses"
    refusals = {
        "privacy.noise": (config.privacy.noise > 0, "is for the gradients of single samples, which a script does not show"),
        "ranks": (config.ranks > 1, devices),
        "numerics": (config.numerics != NumericsSection(), "a script says itself how its steps are computed"),
    }
    for key, (given, why) in refusals.items():
        if given:
            raise ConfigError(f"{key}: {why}; leave it out, and do it in the script")
