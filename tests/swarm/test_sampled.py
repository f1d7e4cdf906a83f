"""Sampled rounds of whole nodes: few train, few average, and the others sleep and lose nothing."""

from collections import Counter

import msgspec
import trio

from starling.node.config.schema import CompressSection, OverlaySection, RobustSection
from tests.harness.stories import virtual
from tests.harness.swarms import digits, events, faults, story, values


def agreement(nodes, *, sample, aggregators, rounds, **pace):
    agreed = digits(
        nodes, pace="sampled", mix="gather", rounds=rounds, compress=CompressSection(select="full", response="fp16"),
        sample=sample, aggregators=aggregators, max_wait_s=1.0, evaluate_every=1, **pace,
    )  # fmt: skip
    return msgspec.structs.replace(agreed, overlay=OverlaySection(kind="complete"), robust=RobustSection(rule="mean"))


def took(swarm):
    return {index: virtual.node.running.exchange for index, virtual in swarm.nodes.items()}


@virtual(1)
async def test_a_sample_trains_and_all_end_with_one_model(seed):
    nodes, rounds = 6, 8
    swarm = story(agreement(nodes, sample=2, aggregators=1, rounds=rounds, local_steps=4), seed)
    async with swarm.running(nodes):
        await swarm.finished()
        first = swarm.nodes[0].vector
        for virtual_node in swarm.nodes.values():
            assert virtual_node.node.progress.round == rounds
        print(
            values(swarm),
            trio.current_time(),
            [v.node.progress.figures.local_steps for v in swarm.nodes.values()],
            [v.node.running.exchange.payload_bytes for v in swarm.nodes.values()],
            [float((v.vector - first).abs().max()) for v in swarm.nodes.values()],
        )
        print(faults(swarm), Counter(e for v in swarm.nodes.values() for e in events(v)))
