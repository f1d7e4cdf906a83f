"""Both engines behind one function, and what of a scenario only they can check."""

from __future__ import annotations

import torch

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.rng import generator
from starling.node.engine.mixing import mixer
from starling.node.simulate import build
from starling.node.simulate.matrix import attackers
from starling.node.simulate.matrix import run as matrix
from starling.node.simulate.matrix.torch_task import layout_of
from starling.node.simulate.results import Outcome, Progress
from starling.node.simulate.schema import Scenario, manifest
from starling.node.simulate.virtual import run as virtual
from starling.node.tasks.catalogue import task


def check(scenario: Scenario) -> None:
    """Task, mixing algorithm, codecs and selector take the values they are given.

    Raises:
        ConfigError: they do not.
    """
    agreed = manifest(scenario)
    if scenario.simulate.model:
        learned, mixing = task(agreed.task.kind, agreed.task.params), mixer(agreed)
        layout = layout_of(learned.model(generator(agreed.seed, "model")))
        dim = mixing.size(layout.dim)
        build.selector(scenario, build.codecs(agreed, layout, dim), mixing.edge, layout, dim)
        attackers.attack(scenario.attack)


def simulate(scenario: Scenario, progress: Progress) -> Outcome:
    """One run.

    Args:
        scenario: without a sweep, checked.
        progress: told as rounds pass.

    Raises:
        ConfigError: the task or its data cannot be had.
        GossipError: the swarm came to a halt.
    """
    torch.set_num_threads(scenario.simulate.threads)
    run = virtual.run if scenario.simulate.engine == "virtual" else matrix.run
    try:
        return run(scenario, progress)
    except BaseExceptionGroup as group:  # of a trio nursery
        ours = group.subgroup(GossipError)
        if ours is None:
            raise
        raise _first(ours) from group


def _first(group: BaseExceptionGroup[GossipError]) -> GossipError:
    """A person's mistake if there is one, else whatever came first."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if isinstance(error, ConfigError)), leaves[0])


def _leaves(group: BaseExceptionGroup[GossipError]) -> list[GossipError]:
    found: list[GossipError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
