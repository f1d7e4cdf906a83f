"""Every key of a scenario file, with its meaning, default and bounds. What a manifest says is in
`node.config.schema`, and means the same here.
"""

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from starling.gossip.bounds import AtLeastOne, Count, NonNegative, Positive, Share
from starling.gossip.catalogue import Scalar
from starling.node.config.parts import Section
from starling.node.config.schema import (
    ByzantineFraction,
    CompressSection,
    Manifest,
    MembershipSection,
    MixSection,
    OptimizerSection,
    OverlaySection,
    PaceSection,
    PartitionSection,
    Preset,
    RobustSection,
    TaskSection,
)

_SIGMAS = 5.0
PATH_TASKS = ("images", "text")  # tasks that read files
PER_NODE_TASKS = ("quadratic", "diagonal", "logistic")
"""Tasks with a problem for each node, drawn for `task.nodes` of them."""


class SimulateSection(Section, frozen=True):
    """Number of nodes and how they are simulated."""

    nodes: Annotated[int, Meta(ge=2, le=100_000)] = 16
    """Nodes that begin."""
    engine: Literal["matrix", "virtual"] = "matrix"
    """matrix: all models as rows of one array, thousands of nodes. virtual: the daemon and engine that volunteers run, frame by
    frame in virtual time, dozens of nodes."""
    model: bool = True
    """false: no model and no data. Members, overlay and one random number a node that is averaged: tens of thousands of nodes."""
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """Root of all chance: the swarm's own and that of faults and networks."""
    salt: Annotated[str, Meta(max_length=64)] = ""
    """matrix: text that orders partners in place of the swarm id. Runs with the same one and the same seed have the same partners and
    batches, whatever their other settings are, so that their differences are paired. "": the swarm id, a hash of all settings."""
    sample: Count = 32
    """Nodes whose own models are evaluated, evenly spread, besides the mean model. 0: all."""
    target: Annotated[float, Meta(ge=-1e9, le=1e9)] = 0.0
    """Value of the metric whose first crossing by the mean over nodes is reported in rounds, seconds and bytes. 0: none."""
    own: bool = False
    """Nodes' models are measured by held-out samples like their own data, labels in the same shares; always with mix.personal and mix.own.
    The mean model is measured by all."""
    running_mean: bool = False
    """matrix: sgd's momentum is a running mean that begins with the first gradient, m_0 = g and not (1 − momentum) g. Of a short run
    it is worth some rounds, and tables in papers have it."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Torch threads of one run. Results may differ in the last bits between different numbers of threads."""


class FaultsSection(Section, frozen=True):
    """Faults of nodes and messages."""

    loss: Share = 0.0
    """Probability that a message is lost."""
    tries: AtLeastOne = 6
    """matrix: how often a message that got no answer is sent in all, within a round or slot. About as often as nodes do it."""
    straggler_share: Share = 0.0
    """Share of the nodes that compute slower than others."""
    straggler_factor: Annotated[float, Meta(ge=1, le=10_000)] = 5.0
    """How many times slower."""
    crash: NonNegative = 0.0
    """Nodes of the whole swarm that vanish in one round, on average; never the last two."""
    leave: NonNegative = 0.0
    """Nodes that leave in order in one round, on average."""
    join: NonNegative = 0.0
    """New nodes that join in one round, on average. Each takes a member's model, and a shard that nobody had yet while there is one."""
    churn_from: Count = 0
    """First round of crashes, leaves and joins."""
    churn_until: Count = 0
    """The round before which they end. 0: they never do."""
    partitions: tuple[tuple[Count, Count, Share], ...] = ()
    """Splits of the network: [from round, until round, share of the nodes on one side]."""


class AttackSection(Section, frozen=True):
    """The attack and the nodes that carry it out. Metrics are then those of honest nodes."""

    kind: Annotated[str, Meta(max_length=64)] = ""
    """A name in starling.robust.attacks.catalogue; docs/simulating.md lists them. "": the bad nodes behave, to compare with."""
    nodes: Count = 0
    """How many nodes are bad: a seeded draw of those that begin."""
    rows: tuple[Count, ...] = ()
    """Which nodes are bad, by number. Instead of `nodes`."""
    params: dict[str, Scalar] = msgspec.field(default_factory=dict)
    """Handed to the attack, e.g. epsilon = 10.0."""


class NetworkSection(Section, frozen=True):
    """Durations of steps and transfers, in virtual seconds."""

    step_s: Positive = 0.01
    """One local step of a node that is no straggler."""
    latency_s: NonNegative = 0.02
    """A message is under way for so long, its bytes come on top."""
    bytes_per_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    """Rate of a node's link, each way. 0: unlimited."""
    spread: Annotated[float, Meta(ge=0, le=3)] = 0.0
    """Rates are log-normal around bytes_per_s with this standard deviation of the natural logarithm: 1 is a factor of 2.7."""
    rates: tuple[Annotated[float, Meta(gt=0, le=1e12)], ...] = ()
    """Bytes a second by node, over again from the first where there are more nodes. Instead of bytes_per_s and spread."""


class SweepSection(Section, frozen=True):
    """Several runs from one file: every combination of the values of every key."""

    seeds: tuple[Annotated[int, Meta(ge=0, le=2**62)], ...] = ()
    """Values of simulate.seed."""
    grid: dict[str, Any] = msgspec.field(default_factory=dict)
    """Dotted key -> list of values. Keys that go together, "mix.kind, optimizer.lr", take lists of lists."""


class ShardsSection(PartitionSection, frozen=True):
    """Split of the data among nodes."""

    shards: Count = 0
    """How many parts are cut. 0: one for each node that there will ever be. Node i has part i, over again where there are more nodes."""


class Scenario(Section, frozen=True):
    """One file, one or more runs."""

    name: Annotated[str, Meta(min_length=1, max_length=64)] = "scenario"
    """For people, and the title of a plot."""
    simulate: SimulateSection = SimulateSection()
    task: TaskSection = msgspec.field(default_factory=TaskSection)
    partition: ShardsSection = msgspec.field(default_factory=ShardsSection)
    optimizer: OptimizerSection = msgspec.field(default_factory=OptimizerSection)
    mix: MixSection = msgspec.field(default_factory=MixSection)
    overlay: OverlaySection = msgspec.field(default_factory=OverlaySection)
    compress: CompressSection = msgspec.field(default_factory=CompressSection)
    pace: PaceSection = msgspec.field(default_factory=PaceSection)
    membership: MembershipSection = MembershipSection()
    robust: RobustSection = msgspec.field(default_factory=RobustSection)
    faults: FaultsSection = FaultsSection()
    attack: AttackSection = AttackSection()
    network: NetworkSection = NetworkSection()
    sweep: SweepSection = SweepSection()
    preset: Preset = "custom"
    """vouched, open: what a manifest of that preset says, for all keys that this file does not give; docs/robustness.md lists them."""
    byzantine_fraction: ByzantineFraction = 0.0
    """Fraction of Byzantine members that the swarm is meant to tolerate; more than its rule tolerates is refused. `attack` says how many
    there are."""


def without_faults(scenario: Scenario) -> bool:
    """Return whether there is no loss, churn, straggler or attack: then no exchange may miss its deadline."""
    return msgspec.structs.replace(scenario.faults, tries=FaultsSection().tries) == FaultsSection() and not scenario.attack.kind


def joiners(scenario: Scenario) -> int:
    """Return the largest number of nodes that can join, except with probability one in millions; rows and shards are reserved for them."""
    faults, rounds = scenario.faults, scenario.pace.rounds
    during = max(0, min(rounds, faults.churn_until or rounds) - faults.churn_from)
    whole, rest = divmod(faults.join, 1.0)
    spread = _SIGMAS * math.sqrt(during * rest * (1.0 - rest))
    return int(whole) * during + min(during if rest else 0, math.ceil(during * rest + spread))


def manifest(scenario: Scenario) -> Manifest:
    """Return the manifest of a scenario's swarm. All nodes begin together, so the quorum is all of them.

    It names no preset, which is about admission too: no simulated node is refused.
    """
    nodes = scenario.simulate.nodes
    parts = scenario.partition.shards or nodes + joiners(scenario)
    task = scenario.task
    if task.kind in PER_NODE_TASKS and "nodes" not in task.params():
        task = task.changed(nodes=parts)
    partition = PartitionSection(**msgspec.to_builtins(scenario.partition) | {"shards": parts})
    return Manifest(
        name=scenario.name,
        seed=scenario.simulate.seed,
        task=task,
        partition=partition,
        optimizer=scenario.optimizer,
        mix=scenario.mix,
        overlay=scenario.overlay,
        compress=scenario.compress,
        membership=scenario.membership,
        robust=scenario.robust,
        byzantine_fraction=scenario.byzantine_fraction,
        pace=msgspec.structs.replace(scenario.pace, quorum=nodes),
    )
