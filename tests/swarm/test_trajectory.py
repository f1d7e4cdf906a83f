"""One seed gives one outcome: a swarm replays bit for bit, and follows the mathematically defined trajectory."""

import msgspec
import pytest
import torch
import trio
from trio.testing import MockClock

from starling.gossip.overlay.beacon import Beacons, signed
from starling.gossip.overlay.ranks import epoch_of
from starling.node.config.initial_model import with_file_digest
from starling.node.config.schema import (
    CompressSection,
    Manifest,
    MixSection,
    NodeConfig,
    OptimizerSection,
    OverlaySection,
    PaceSection,
    PartitionSection,
    RobustSection,
    TaskSection,
)
from starling.node.daemon.membership.neighbors import Caps, RandomNeighbors, secret_draws
from starling.node.identity import verify
from starling.node.net.faults import loss
from starling.node.rpc.calls import Save, Train
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.engines import done, opened
from tests.harness.sections import taken
from tests.harness.stories import replayable
from tests.harness.trajectory import walk

EXACT = CompressSection(select="full", request="identity", response="identity")
CODED = CompressSection(select="full", request="fp16", response="int4")


def agreement(n, *, overlay="sticky", mix="pet", compress=CODED, rounds=8, pace="steps"):
    """Return a manifest of digits, partitioned by label so that corrections matter."""
    lr = 0.02 if mix != "gradient_tracking" else 0.005
    return Manifest(
        seed=3,
        task=TaskSection(kind="digits", hidden=16),
        partition=PartitionSection(kind="by_label", shards=n),
        optimizer=OptimizerSection(lr=lr),
        mix=taken(MixSection, kind=mix, kappa=0.1, clip_norm=5.0),
        overlay=OverlaySection(kind=overlay),
        compress=compress,
        pace=PaceSection(kind=pace, local_steps=4, rounds=rounds, quorum=n, slot_s=0.05),
    )


def _draw(swarm, index):
    """Return how a node draws the peers it pulls."""
    me, members = swarm.nodes[index].peer_id, swarm.nodes[index].node.running.membership.members
    return RandomNeighbors(
        lambda: members,
        me,
        swarm.manifest.overlay.params().get("k", 1),
        Caps(),
        lambda _peer: True,
        secret_draws(swarm.identity(index).seed, swarm.nodes[index].node.running.membership.incarnation_of(me)),
    )


def _salt(swarm):
    """Return the salt of a round's ranks from the creator's beacons."""
    every, creator = swarm.manifest.overlay.rerank_every, swarm.identity(0)
    beacons = Beacons(swarm.swarm, creator.peer_id, verify)
    for epoch in range(1, epoch_of(swarm.manifest.pace.rounds, every) + 1):
        beacons.take("", signed(swarm.swarm, epoch, creator.sign), epoch)
    return lambda number: beacons.salt(swarm.swarm.encode(), epoch_of(number, every))


def outcome(agreed, n, seed, rules=()):
    """Return (peer ids, (n, d) models, incarnation by pair, uncommitted exchanges) of one whole run."""

    async def story():
        swarm = VirtualSwarm(agreed, rules=list(rules), seed=seed)
        async with swarm.running(n):
            await swarm.finished()
            nodes = [swarm.nodes[index] for index in range(n)]
            edges = {(v.peer_id, peer): edge.inc for v in nodes for peer, edge in v.node.running.exchange.edges.items()}
            stats = [v.node.running.exchange.stats for v in nodes]
            failed = sum(s.aborted + s.busy + s.timeout for s in stats)
            return [v.peer_id for v in nodes], torch.stack([v.vector for v in nodes]), edges, failed, swarm.swarm

    return replayable(story, seed)


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, pytest.param(8, marks=pytest.mark.acceptance)])
@pytest.mark.parametrize(
    ("overlay", "mix", "compress"), [("sticky", "pet", CODED), ("base_k", "dsgd", EXACT), ("ring", "gradient_tracking", EXACT)]
)
def test_a_swarm_of_whole_nodes_follows_the_reference_trajectory_bit_for_bit(deterministic_scheduler, n, overlay, mix, compress):
    deterministic_scheduler(n)
    agreed = agreement(n, overlay=overlay, mix=mix, compress=compress)
    peers, models, incs, failed, swarm = outcome(agreed, n, seed=n)
    assert failed == 0
    assert all(incs[peer, me] == inc for (me, peer), inc in incs.items())
    expected = walk(agreed, swarm, peers, lambda one, other: incs[one, other])
    for node, peer in enumerate(peers):
        assert torch.equal(models[node], expected[node]), peer
    assert not torch.equal(models[0], models[1])


STATIC = OverlaySection(kind="ring")
AVERAGED = OverlaySection(kind="alone", average_every=2)
ALGORITHMS = {
    "k_gt": (MixSection(kind="k_gt", clip_norm=5.0), OverlaySection(kind="base_k", k=2), CODED),
    "quasi_global": (MixSection(kind="quasi_global"), OverlaySection(), CODED),
    "exact_diffusion": (MixSection(kind="exact_diffusion"), STATIC, EXACT),
    "d2": (MixSection(kind="d2"), OverlaySection(kind="complete"), EXACT),
    "a2cid2": (MixSection(kind="a2cid2", chi1=4.0, chi2=2.0), OverlaySection(kind="random_matching"), CODED),
    "awc": (MixSection(kind="dsgd", order="awc", defended=False), OverlaySection(kind="static_exponential"), CODED),
    "choco": (MixSection(kind="choco", gamma=0.5), STATIC, CODED),
    "beer": (MixSection(kind="beer", gamma=0.5), STATIC, EXACT),
    "push_sum": (MixSection(kind="push_sum"), OverlaySection(kind="one_peer_exponential"), EXACT),
    "r_fast": (MixSection(kind="r_fast"), OverlaySection(kind="static_exponential"), EXACT),
    "defended_tracking": (MixSection(kind="defended_tracking"), OverlaySection(kind="base_k", k=2), EXACT),
    "local_sgd": (MixSection(kind="dsgd"), AVERAGED, EXACT),
    "diloco": (MixSection(kind="outer"), AVERAGED, CODED),
    "diloco after plain averages": (MixSection(kind="outer", plain_averages=1), AVERAGED, CODED),
    "streaming": (MixSection(kind="outer", fragments=3, keep=0.5), OverlaySection(kind="alone", average_every=2, overlap=True), CODED),
    "noloco": (MixSection(kind="outer", outer_momentum=0.5, nesterov=False, pull=0.5), OverlaySection(kind="random_matching"), CODED),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_on_whole_nodes_follows_its_reference(deterministic_scheduler, name):
    deterministic_scheduler(1)
    mix, overlay, compress = ALGORITHMS[name]
    agreed = msgspec.structs.replace(agreement(5, compress=compress, rounds=6), mix=mix, overlay=overlay)
    momentum = 0.0 if name == "quasi_global" else 0.5
    rate = OptimizerSection(lr=0.005, momentum=momentum, schedule="constant")
    agreed = msgspec.structs.replace(agreed, optimizer=rate)
    peers, models, incs, failed, swarm = outcome(agreed, 5, seed=2)
    assert failed == 0
    expected = walk(agreed, swarm, peers, lambda one, other: incs[one, other])
    for node, peer in enumerate(peers):
        assert torch.equal(models[node], expected[node]), peer


HALVED = CompressSection(select="full", request="fp16", response="fp16")
GATHERED = {
    "mean of everybody": (OverlaySection(kind="complete"), RobustSection(rule="mean"), EXACT),
    "median of neighbors that change": (OverlaySection(kind="one_peer_exponential", rerank_every=3), RobustSection(rule="median"), CODED),
    "cs_plus of a draw": (OverlaySection(kind="pull", k=4), RobustSection(rule="cs_plus", f=1), HALVED),
    "cs_nnm of a draw": (OverlaySection(kind="pull", k=4), RobustSection(rule="cs_nnm", f=1), HALVED),
    "ubar of a draw": (OverlaySection(kind="pull", k=3), RobustSection(rule="ubar"), HALVED),
    "nnm and krum of a draw": (OverlaySection(kind="pull", k=4), RobustSection(rule="krum", f=1, before="nnm"), HALVED),
}


@pytest.mark.slow
def test_a_swarm_with_an_initial_file_follows_the_reference_trajectory(deterministic_scheduler, tmp_path):
    deterministic_scheduler(2)
    agreed, file = agreement(4, overlay="ring", compress=EXACT, rounds=3), tmp_path / "warm.safetensors"
    trained = opened(msgspec.structs.replace(agreed, seed=8))
    for call in (Train(0, 4), Save(str(file))):
        done(trained, call)
    agreed = msgspec.structs.replace(agreed, task=agreed.task.changed(start=str(file)))
    peers, models, incs, failed, swarm = outcome(agreed, 4, seed=2)
    assert failed == 0
    expected = walk(agreed, swarm, peers, lambda one, other: incs[one, other])
    assert torch.equal(models, expected)
    created, _ = with_file_digest(agreed, NodeConfig())
    assert torch.equal(walk(created, swarm, peers, lambda one, other: incs[one, other], file=str(file)), expected)


def test_the_plain_phase_equals_plain_averaging_bit_for_bit():
    """On neural networks with a node's optimiser: exact averages, and pairwise averages that also exchange outer parameters."""
    pairs = OverlaySection(kind="random_matching")
    for overlay, keys in ((AVERAGED, {}), (pairs, {"outer_momentum": 0.5, "pull": 0.7, "nesterov": False})):
        agreed = msgspec.structs.replace(agreement(4, compress=EXACT, rounds=6), overlay=overlay)
        plain, phased, stepped = (
            walk(msgspec.structs.replace(agreed, mix=mix), "swarm", "abcd")
            for mix in (
                MixSection(kind="dsgd", clip_norm=0.0),
                MixSection(kind="outer", plain_averages=6, clip_norm=0.0, **keys),
                MixSection(kind="outer", plain_averages=1, clip_norm=0.0, **keys),
            )
        )
        assert torch.equal(phased, plain)
        assert not torch.equal(stepped, plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", GATHERED)
def test_pulled_vectors_are_combined_by_the_rule_s_reference(deterministic_scheduler, name):
    deterministic_scheduler(1)
    overlay, robust, compress = GATHERED[name]
    agreed = msgspec.structs.replace(agreement(6, mix="gather", compress=compress, rounds=5), overlay=overlay, robust=robust)

    async def story():
        swarm = VirtualSwarm(agreed, seed=4, step_cost_s=lambda _index: 0.05)  # rounds longer than a start takes
        async with swarm.running(6):
            await swarm.finished()
            nodes = [swarm.nodes[index].node for index in range(6)]
            draws = {n.setup.identity.peer_id: _draw(swarm, index) for index, n in enumerate(nodes)}
            assert not any(
                n.running.exchange.stats.busy + n.running.exchange.stats.timeout + n.running.exchange.stats.aborted for n in nodes
            )
            return list(draws), draws, torch.stack([swarm.nodes[i].vector for i in range(6)]), swarm

    peers, draws, models, swarm = replayable(story, 4)
    asked = (lambda me, number: draws[me].weights(number)) if overlay.kind == "pull" else None
    expected = walk(agreed, swarm.swarm, peers, asked=asked, salt=_salt(swarm))
    for node, peer in enumerate(peers):
        assert torch.equal(models[node], expected[node]), peer
    assert not torch.equal(models[0], models[1]) or name == "mean of everybody"


@pytest.mark.slow
@pytest.mark.parametrize("pace", ["steps", "clock"])
def test_a_seed_replays_bit_for_bit_with_all_faults(deterministic_scheduler, pace):
    outcomes = []
    for seed in (1, 1, 2):
        deterministic_scheduler(seed)
        outcomes.append(outcome(agreement(6, pace=pace, rounds=4), 6, seed, [loss(0.3, seed)]))
    (peers, models, incs, failed, _), (peers2, models2, incs2, failed2, _), (_, others, *_) = outcomes
    assert failed > 0
    assert (peers, incs, failed) == (peers2, incs2, failed2)
    assert torch.equal(models, models2)
    assert not torch.equal(models, others)


def test_the_scheduler_s_order_depends_on_the_seed_only(deterministic_scheduler):
    async def order():
        woken = []

        async def wake(name):
            for _ in range(5):
                await trio.lowlevel.checkpoint()
                woken.append(name)

        async with trio.open_nursery() as nursery:
            for name in range(6):
                nursery.start_soon(wake, name)
        return woken

    runs = []
    for seed in (7, 7, 8):
        deterministic_scheduler(seed)
        runs.append(trio.run(order, clock=MockClock(autojump_threshold=0)))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
