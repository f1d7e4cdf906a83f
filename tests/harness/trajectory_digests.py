"""Prints one digest for each algorithm: sha256 of all final models of a small swarm of whole nodes.

The task is elementwise arithmetic, run with the plainest kernels in one thread, so digests do not depend on the processor. The swarm id is
pinned: it seeds ranks, and may change with the manifest's format.

The first incarnation of an edge is derived from its two ends. On nodes it is a random number that seeds masks and random rounding, so it
depends on the order in which peers meet (which decisions 31, 34, 40 and 87 changed), not on what they compute.
"""

import hashlib
import json
import os
from functools import partial

PLAIN_KERNELS = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SWARM = "starling-trajectory-digests"
NODES = 6


def manifests():
    """Return algorithm -> manifest; 6 nodes, 10 rounds of 4 local steps on quadratics of 400 parameters."""
    from starling.node.config.schema import (
        CompressSection,
        Manifest,
        MixSection,
        OptimizerSection,
        OverlaySection,
        PaceSection,
        PartitionSection,
        RobustSection,
        TaskSection,
    )

    exact = CompressSection(select="full", request="identity", response="identity")
    masked = CompressSection(select="mask", ratio=0.25, request="fp16", response="int4")
    top_k = CompressSection(select="top_k", ratio=0.25, request="fp16", response="int8")
    halved = CompressSection(select="full", request="fp16", response="fp16")

    def agreed(mix, overlay, compress, schedule="cosine", **more):
        return Manifest(
            seed=5,
            task=TaskSection(kind="diagonal", dim=400, nodes=NODES, noise=0.1),
            partition=PartitionSection(shards=NODES),
            mix=mix,
            overlay=overlay,
            compress=compress,
            optimizer=OptimizerSection(lr=0.05, momentum=0.5, schedule=schedule),
            pace=PaceSection(local_steps=4, rounds=10, quorum=NODES, min_wait_s=5.0),
            **more,
        )

    pet, dsgd = partial(MixSection, kind="pet", kappa=0.1, clip_norm=5.0), partial(MixSection, kind="dsgd")
    sticky, base_k = OverlaySection(kind="sticky"), OverlaySection(kind="base_k", k=2)
    return {
        # since decision 23 the gain follows the rate, which is constant here
        "pet": agreed(pet(defended=False), sticky, masked, "constant"),
        "dsgd": agreed(dsgd(defended=False), base_k, exact),
        "pet defended": agreed(pet(), sticky, masked, "constant"),
        "dsgd defended": agreed(dsgd(), base_k, exact),
        "choco": agreed(MixSection(kind="choco", gamma=0.5), OverlaySection(kind="ring"), top_k),
        "push_sum": agreed(MixSection(kind="push_sum"), OverlaySection(kind="one_peer_exponential"), exact),
        "gather": agreed(MixSection(kind="gather"), OverlaySection(kind="pull", k=4), halved, robust=RobustSection(rule="cs_nnm", f=1)),
    }


def edge_by_ends(me, peer, _inc):
    """Return an edge whose first incarnation is a function of its two ends."""
    from starling.gossip.exchange.edge import Edge

    ends = " ".join(sorted((me, peer)))
    return Edge(me, peer, int.from_bytes(hashlib.sha256(ends.encode()).digest()[:7], "big"))


def digest(manifest):
    """Return the digest of the final models, in order of peer id."""
    import torch

    from starling.gossip.exchange import pairwise
    from starling.node.simulate.virtual.swarm import VirtualSwarm
    from tests.harness.scheduler import reproducible
    from tests.harness.stories import replayable

    pairwise.Edge = edge_by_ends

    async def story():
        swarm = VirtualSwarm(manifest, seed=2, step_cost_s=lambda _index: 0.05)
        swarm.swarm = SWARM
        async with swarm.running(NODES):
            await swarm.finished()
            nodes = sorted((swarm.nodes[index] for index in range(NODES)), key=lambda each: each.peer_id)
            stats = [each.node.running.exchange.stats for each in nodes]
            assert not any(each.aborted + each.busy + each.timeout for each in stats)
            return torch.stack([each.vector for each in nodes])

    with reproducible() as seed:
        seed(1)
        models = replayable(story, 2)
    assert models.isfinite().all()
    return hashlib.sha256(models.numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    os.environ.update(PLAIN_KERNELS)  # before torch is imported
    print(json.dumps({name: digest(manifest) for name, manifest in manifests().items()}, indent=2))  # noqa: T201
