"""The parts that a scenario's swarm is made of, the same for both engines: one small function each.

Shapes: N rows, d parameters, D numbers of the shared vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from starling.gossip.api import Averaging, Gathering, Selector, Swapping
from starling.gossip.mix.catalogue import swaps
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.seeds import derive
from starling.gossip.vector import Layout
from starling.node.config.schema import Manifest
from starling.node.daemon.exchange.budget import FILL
from starling.node.engine.compression import parts, selection, terms
from starling.node.simulate.schema import Scenario, joiners
from starling.node.simulate.virtual.swarm import VirtualSwarm


def rows(scenario: Scenario) -> int:
    """N: nodes that begin and those that may join."""
    return scenario.simulate.nodes + joiners(scenario)


def identities(agreed: Manifest, count: int) -> tuple[str, tuple[str, ...]]:
    """The swarm id and `count` peer ids: those that whole nodes of this seed have."""
    swarm = VirtualSwarm(agreed, seed=agreed.seed)
    return swarm.swarm, tuple(swarm.identity(index).peer_id for index in range(count))


def codecs(agreed: Manifest, layout: Layout, dim: int) -> Terms:
    """What the swarm agreed on for the exchange of vectors (D,) made of models of this layout."""
    return terms(agreed, layout.dtype, parts(layout, dim))


def selector(
    scenario: Scenario, agreed: Terms, edge: Averaging | Swapping | Gathering, layout: Layout, dim: int
) -> Selector:
    """Coordinates of such an exchange. A budget that is left to be measured is what the slowest of `network.rates` allows."""
    network, section = scenario.network, scenario.compress
    rate = min(network.rates, default=network.bytes_per_s)
    budget = 0 if section.budget_bytes else int(rate * scenario.pace.slot_s * FILL)
    request = agreed.response if swaps(edge) else agreed.request
    return selection(section, request, agreed.response, parts(layout, dim))(budget, dim)


def bad(scenario: Scenario, count: int) -> NDArray[np.bool_]:
    """(N,) which rows lie: those that are named, or of those that begin as many as asked for, those with the lowest draw."""
    attack, seed = scenario.attack, scenario.simulate.seed
    chosen = np.zeros(count, dtype=bool)
    if attack.rows:
        chosen[list(attack.rows)] = True
        return chosen
    draws = np.array([derive(seed, "bad", row) for row in range(scenario.simulate.nodes)], dtype=np.uint64)
    chosen[np.argsort(draws, kind="stable")[: attack.nodes]] = True
    return chosen


def stragglers(scenario: Scenario, count: int) -> NDArray[np.bool_]:
    """(N,) which rows compute slower: as many as the share says, those with the lowest draw."""
    faults, seed = scenario.faults, scenario.simulate.seed
    draws = np.array([derive(seed, "straggler", row) for row in range(count)], dtype=np.uint64)
    slow = np.zeros(count, dtype=bool)
    slow[np.argsort(draws, kind="stable")[: round(faults.straggler_share * count)]] = True
    return slow


def step_s(scenario: Scenario, count: int) -> NDArray[np.float64]:
    """(N,) seconds of a local step."""
    slow = stragglers(scenario, count)
    return scenario.network.step_s * np.where(slow, scenario.faults.straggler_factor, 1.0)


def rates(scenario: Scenario, count: int) -> NDArray[np.float64]:
    """(N,) bytes a second of each node's link; inf where unlimited."""
    network = scenario.network
    if network.rates:
        return np.resize(np.array(network.rates, dtype=np.float64), count)
    if not network.bytes_per_s:
        return np.full(count, math.inf)
    chance = np.random.Generator(np.random.PCG64(derive(scenario.simulate.seed, "rates")))
    return network.bytes_per_s * np.exp(network.spread * chance.standard_normal(count))


def sides(scenario: Scenario, split: int, count: int) -> NDArray[np.bool_]:
    """(N,) on which side of partition number `split` each row is."""
    share = scenario.faults.partitions[split][2]
    draws = [derive(scenario.simulate.seed, "partition", split, row) / 2**63 for row in range(count)]
    return np.array(draws) < share


def splits(scenario: Scenario, count: int) -> Sequence[tuple[int, int, NDArray[np.bool_]]]:
    """(from round, until round, side of each row) of every partition."""
    return [
        (begin, end, sides(scenario, split, count))
        for split, (begin, end, _share) in enumerate(scenario.faults.partitions)
    ]
