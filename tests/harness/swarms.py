"""Shared by stories of swarms: manifests, and inspection of ledgers."""

from collections.abc import Callable
from typing import Any

import torch
import trio

from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Message
from starling.node.config.schema import CompressSection, Manifest, MixSection, OptimizerSection, PaceSection, PartitionSection, TaskSection
from starling.node.daemon.running import RunningNode
from starling.node.rpc import calls
from starling.node.simulate.virtual.swarm import VirtualNode, VirtualSwarm
from tests.harness.daemons import until  # noqa: F401 — for tests of swarms

STEP_S = 0.02  # cost of a local step in a story: a round of ten takes a fifth of a second


def digits(nodes: int, *, seed: int = 0, pace: str = "steps", mix: str = "pet", compress=None, **rounds: Any) -> Manifest:
    """Return a manifest of unevenly partitioned digits; further keyword arguments are keys of the pace."""
    return Manifest(
        seed=seed,
        task=TaskSection(kind="digits"),
        partition=PartitionSection(shards=nodes),
        optimizer=OptimizerSection(schedule="constant"),
        mix=MixSection(kind=mix),
        compress=compress or CompressSection(),
        pace=PaceSection(
            kind=pace,
            **{"local_steps": 10, "rounds": 60, "quorum": nodes, "slot_s": 0.2} | ({"max_wait_s": 1.0} if pace == "steps" else {}) | rounds,
        ),
    )


def story(agreed: Manifest, seed: int, *rules, slow: dict[int, float] | None = None, **options: Any) -> VirtualSwarm:
    """Return a swarm whose nodes are equally fast, except those in `slow`: index -> times slower."""
    slower = slow or {}
    return VirtualSwarm(agreed, rules=list(rules), seed=seed, step_cost_s=lambda i: STEP_S * slower.get(i, 1.0), **options)


def rounds_done(swarm: VirtualSwarm, count: int) -> bool:
    """Return whether every live node has done this many rounds."""
    return all(virtual.node.progress.round >= count for virtual in swarm.nodes.values())


def agree(swarm: VirtualSwarm, *nodes: int) -> bool:
    """Return whether the given nodes (by default all live ones) list exactly each other."""
    chosen = [swarm.nodes[index] for index in nodes or swarm.nodes]
    expected = tuple(sorted(virtual.peer_id for virtual in chosen))
    return all(isinstance(virtual.node.phase, RunningNode) and virtual.node.running.membership.members == expected for virtual in chosen)


def values(swarm: VirtualSwarm) -> list[float]:
    """Return the last values of the metric, by index."""
    return [virtual.node.progress.evaluated.value for virtual in swarm.nodes.values()]


def flows_with(swarm: VirtualSwarm, peer: str) -> list[int]:
    """Return the nodes that have a flow of `peer`, open or settled."""
    ledgers = {index: virtual.engine.replica.memory.ledger for index, virtual in swarm.nodes.items()}
    return [index for index, ledger in ledgers.items() if peer in ledger.flows.keys() | ledger.settled.keys()]


def faults(swarm: VirtualSwarm) -> set[tuple[str, str]]:
    """Return (peer, reason) that any node reported."""
    counts = [virtual.node.events.faults for virtual in swarm.nodes.values()]
    return {(peer, reason) for each in counts for peer, reasons in each.items() for reason in reasons}


def kill_engine(virtual: VirtualNode) -> None:
    """Kill the running engine, if any, as a crash of its process would."""
    phase = virtual.node.phase
    if isinstance(phase, RunningNode) and phase.engine.engine is not None:
        phase.engine.engine.kill()


def events(virtual: VirtualNode) -> list[str]:
    """Return the names of a node's events."""
    return [event.name for event in virtual.node.events.recent]


async def drain(swarm: VirtualSwarm) -> None:
    """Let every edge send its remaining messages on a lossless network."""
    swarm.hub.rules.clear()
    for _ in range(3):
        for virtual in swarm.nodes.values():
            exchange = virtual.node.running.exchange
            for edge in exchange.edges.values():
                exchange.carry_out([*edge.greet(), *edge.retry()])
        await trio.sleep(1.0)
    for virtual in swarm.nodes.values():
        if swarm.manifest.pace.kind == "steps":
            await virtual.node.running.engine.call(calls.Mix(swarm.manifest.pace.rounds))  # for effects that were proven late


def assert_flows_cancel(swarm: VirtualSwarm) -> float:
    """Assert that every flow is the bitwise negative of the other end's, and that corrections of live nodes sum to zero.

    Settled flows count: an edge closed in order keeps its flow on both ends. Return the largest |c|.
    """
    held = {virtual.peer_id: virtual.engine.replica.memory.ledger for virtual in swarm.nodes.values()}
    for me, ledger in held.items():
        for peer, other in held.items():
            if me < peer:
                for one, two in ((ledger.flows, other.flows), (ledger.settled, other.settled)):
                    zero = torch.zeros_like(ledger.total)
                    assert torch.equal(one.get(peer, zero), -two.get(me, zero)), (me, peer)
        strangers = (ledger.flows.keys() | ledger.settled.keys()) - held.keys()
        assert not strangers, f"{me} keeps flows of {strangers}"
    totals = torch.stack([ledger.total for ledger in held.values()])
    largest = float(totals.abs().max())
    assert float(totals.sum(0).abs().max()) <= 1e-5 * largest
    return largest


Forge = Callable[[Message], list[Message | bytes]]
"""What the liar sends in place of an honest message."""


def lie(network, lane: str, forge: Forge, to: Callable[[str], bool]) -> None:
    """Rewrite what an address in the network sends on one lane to those peers that `to` currently selects."""
    honest = network.send

    async def send(peer, on, frame):
        messages = forge(decode(on, "", frame)) if on == lane and to(peer) else [frame]
        for message in messages:
            await honest(peer, on, message if isinstance(message, bytes) else encode(message))

    network.send = send


def longest(node, rounds):
    """Return the largest number of bytes of both payloads of an exchange in these rounds."""
    return max(t.bytes_sent + t.bytes_received for t in node.transactions.ended if t.outcome == "committed" and t.round in rounds)
