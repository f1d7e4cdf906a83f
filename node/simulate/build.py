"""Builds the parts of a scenario's swarm, the same for both engines: one small function each.

Shapes: N rows, d parameters, D numbers of the shared vector.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from starling.gossip.api import Mixer, Selector
from starling.gossip.compress.budget import FILL
from starling.gossip.mix.base import origin
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.kinds import SENT_AS_RESPONSES, kind_of
from starling.gossip.seeds import derive
from starling.gossip.vector import Layout
from starling.node.config.schema import Manifest
from starling.node.engine.compression import exchange_codec, extra_size, parts, selection, selector_facts
from starling.node.simulate.schema import Scenario, joiners
from starling.node.simulate.virtual.swarm import VirtualSwarm


def rows(scenario: Scenario) -> int:
    """Return N: initial nodes and possible joiners."""
    return scenario.simulate.nodes + joiners(scenario)


def identities(agreed: Manifest, count: int) -> tuple[str, tuple[str, ...]]:
    """Return the swarm id and `count` peer ids: those that whole nodes of this seed have."""
    swarm = VirtualSwarm(agreed, seed=agreed.seed)
    return swarm.swarm, tuple(swarm.identity(index).peer_id for index in range(count))


def exchange(scenario: Scenario, agreed: Manifest, mixer: Mixer, whole: Layout, layout: Layout) -> tuple[ExchangeCodec, Selector]:
    """Return codecs and selector for the exchange of vectors (D,); models have the layout `whole`, of which `layout` is shared.

    A byte budget that nodes would measure is what the slowest of `network.rates` allows.

    Raises ConfigError: a part does not take its parameters.
    """
    dim = origin(mixer, torch.zeros(whole.dim)).numel()
    codec = exchange_codec(agreed, layout.dtype, parts(layout, dim))
    rate = min(scenario.network.rates, default=scenario.network.bytes_per_s)
    budget = 0 if scenario.compress.params().get("budget_bytes") else int(rate * scenario.pace.slot_s * FILL)
    kind = kind_of(mixer.edge)
    request = codec.response if kind in SENT_AS_RESPONSES else codec.request
    select = selection(
        scenario.compress,
        request,
        codec.response,
        parts(layout, dim),
        wishes=selector_facts(agreed.compress, kind).wishes,
        extra_size=extra_size(agreed),
    )
    return codec, select(budget, dim)


def byzantine(scenario: Scenario, count: int) -> NDArray[np.bool_]:
    """Return (N,): which rows are Byzantine: the named ones, or a random draw of the initial ones."""
    attack = scenario.attack
    named = attack.rows or _lowest(scenario, "bad", scenario.simulate.nodes, attack.nodes).nonzero()[0]
    return np.isin(np.arange(count), named)


def step_s(scenario: Scenario, count: int) -> NDArray[np.float64]:
    """Return (N,), seconds of a local step; of a share of the rows, by draw, longer."""
    faults = scenario.faults
    slow = _lowest(scenario, "straggler", count, round(faults.straggler_share * count))
    return scenario.network.step_s * np.where(slow, faults.straggler_factor, 1.0)


def _lowest(scenario: Scenario, label: str, rows: int, count: int) -> NDArray[np.bool_]:
    """Return (rows,), the `count` rows with the lowest draws."""
    draws = np.array([derive(scenario.simulate.seed, label, row) for row in range(rows)], dtype=np.uint64)
    chosen = np.zeros(rows, dtype=bool)
    chosen[np.argsort(draws, kind="stable")[:count]] = True
    return chosen


def rates(scenario: Scenario, count: int) -> NDArray[np.float64]:
    """Return (N,), bytes a second of each node's link; inf where unlimited."""
    network = scenario.network
    if network.rates:
        return np.resize(np.array(network.rates, dtype=np.float64), count)
    if not network.bytes_per_s:
        return np.full(count, math.inf)
    rng = np.random.Generator(np.random.PCG64(derive(scenario.simulate.seed, "rates")))
    return network.bytes_per_s * np.exp(network.spread * rng.standard_normal(count))


def splits(scenario: Scenario, count: int) -> Sequence[tuple[int, int, NDArray[np.bool_]]]:
    """Return (from round, until round, (N,) on which side each row is) of every partition."""
    intervals = []
    for split, (begin, end, share) in enumerate(scenario.faults.partitions):
        draws = [derive(scenario.simulate.seed, "partition", split, row) / 2**63 for row in range(count)]
        intervals.append((begin, end, np.array(draws) < share))
    return intervals
