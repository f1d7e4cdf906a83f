"""Both engines behind one function, and the checks of a scenario that need torch."""

import torch

from starling.gossip.errors import GossipError
from starling.node.catalogues import task
from starling.node.daemon.observe.final import first_error
from starling.node.engine.initial_model import initial
from starling.node.engine.mixing import mixer_of
from starling.node.simulate import build
from starling.node.simulate.matrix import byzantine
from starling.node.simulate.matrix import run as matrix
from starling.node.simulate.matrix.problem import layout_of
from starling.node.simulate.measure import Seen
from starling.node.simulate.results import Outcome, Progress
from starling.node.simulate.schema import Scenario, manifest
from starling.node.simulate.virtual import run as virtual


def check(scenario: Scenario) -> None:
    """Task, mixing algorithm, codecs and selector take the values they are given. Raises ConfigError: they do not."""
    agreed = manifest(scenario)
    if scenario.simulate.model:
        model = initial(task(agreed.task.kind, agreed.task.params()), agreed)
        whole = layout_of(model)
        mixer, shared = mixer_of(agreed, whole)
        build.exchange(scenario, agreed, mixer, whole, shared)
        byzantine.attack(scenario.attack)


def simulate(scenario: Scenario, progress: Progress, seen: Seen | None = None) -> Outcome:
    """Do one run of a checked scenario without a sweep; `progress` is called as rounds pass, `seen` at every evaluation.

    Raises ConfigError: the task or its data are not available; GossipError: the swarm stopped making progress.
    """
    torch.set_num_threads(scenario.simulate.threads)
    run = virtual.run if scenario.simulate.engine == "virtual" else matrix.run
    try:
        return run(scenario, progress, seen)
    except BaseExceptionGroup as group:  # of a trio nursery
        if group.subgroup(GossipError) is None:
            raise
        raise first_error(group) from group
