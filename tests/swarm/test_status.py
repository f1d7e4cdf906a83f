"""What nodes report while a swarm runs: true distances, partners and exchanges, with changes reported at once."""

import math
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import msgspec
import pytest
import trio

from starling.gossip.errors import GossipError, PeerUnreachable
from starling.node.config.schema import CompressSection, Manifest, MixSection, NodeConfig, OverlaySection, PaceSection, TaskSection
from starling.node.daemon.app import Joining, Node, OpeningTask, Starting
from starling.node.daemon.events import Events
from starling.node.daemon.observe.control_commands import carry_out
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.daemon.store import MemoryStore
from starling.node.engine.consensus import rms
from starling.node.net.memory_network import address_of
from starling.node.simulate.virtual.swarm import VirtualSwarm
from starling.node.status.snapshot import Resources, decode, encode
from tests.harness.stories import virtual
from tests.harness.swarms import agree, digits, events, rounds_done, story, until

LOSSLESS = CompressSection(select="full", request="identity", response="identity")
ROUNDS = 4


def snapshots(swarm):
    """Return the statuses by peer id, as sent over a socket."""
    return {it.peer_id: decode(encode(take_snapshot(it.node))) for it in swarm.nodes.values()}


def gated(event, opens):
    """Let something happen only after an event."""

    @asynccontextmanager
    async def gate(*given):
        await event.wait()
        async with opens(*given) as opened:
            yield opened

    return gate


async def frozen_vectors(swarm) -> dict[int, dict[str, object]]:
    """Return the vectors exchanged by each node, by round, when all rounds are done."""
    seen: dict[int, dict[str, object]] = {}
    while not rounds_done(swarm, ROUNDS) or any(it.node.progress.state == "training" for it in swarm.nodes.values()):
        for it in swarm.nodes.values():
            if it.engine is None or not it.engine.is_open:
                continue
            vectors = it.engine.session.rounds.vectors
            if vectors.frozen is not None:
                seen.setdefault(vectors.round, {})[it.peer_id] = vectors.frozen.vector.clone()
        await trio.sleep(0.001)
    return seen


@virtual(0)
async def test_two_nodes_report_the_true_distance_of_their_models_and_every_exchange(seed):
    agreed = digits(2, seed=seed, mix="dsgd", compress=LOSSLESS, rounds=ROUNDS, local_steps=2)
    swarm = story(agreed, seed, config=NodeConfig(linger_s=1e6, threads=1, up_bytes_per_s=10_000_000))
    async with swarm.running(2):
        vectors = await frozen_vectors(swarm)
        a, b = sorted(seen := snapshots(swarm))
        for peer, other in ((a, b), (b, a)):
            it = seen[peer]
            assert [point.round for point in it.distance_curve] == list(range(1, ROUNDS + 1))
            for point in it.distance_curve:
                there = vectors[point.round - 1]
                assert point.value == pytest.approx(rms(there[peer] - there[other]), rel=1e-5)
            assert it.distance == it.distance_curve[-1].value
            assert (sorted(it.ranks), it.links) == ([a, b], ((0, 1),))
            done = [t for t in it.transactions if t.outcome == "committed"]
            assert [t.round for t in done] == list(range(ROUNDS))
            assert all((t.peer, t.asked, t.clip) == (other, peer == a, 1.0) for t in done)
            assert all(t.bytes_sent > 0 and t.bytes_received > 0 and t.seconds > 0.0 for t in done)
            assert sum(t.bytes_sent for t in done) == it.payload_bytes
            assert it.exchanges.committed == len(done)
            assert (it.up_limit_bytes_per_s, it.down_limit_bytes_per_s) == (10_000_000, None)
            assert it.resources == Resources(threads=1), "in simulation there is no process"
            assert 0.0 < it.paced_per_s < it.steps_per_s, "waiting counts"


@virtual(0)
async def test_an_invite_of_any_member_lists_the_others_until_they_leave(seed):
    swarm = story(digits(2, seed=seed, mix="dsgd", compress=LOSSLESS, rounds=1000, local_steps=2, max_wait_s=0.5), seed)
    async with swarm.running(3):
        await until(lambda: agree(swarm, 0, 1, 2))
        await until(lambda: rounds_done(swarm, 1))
        creator, *others = (swarm.nodes[index].peer_id for index in range(3))
        for peer, it in snapshots(swarm).items():
            assert it.bootstrap[0] == address_of(peer)
            assert set(it.bootstrap) == {address_of(each) for each in (creator, *others)}
        await swarm.crash(0)
        await until(lambda: agree(swarm, 1, 2))
        assert all(set(it.bootstrap) == set(map(address_of, others)) for it in snapshots(swarm).values())


@virtual(0)
async def test_status_of_a_pulling_node_has_its_requests_and_those_of_others(seed):
    agreed = Manifest(
        seed=seed,
        task=TaskSection(kind="digits"),
        overlay=OverlaySection(kind="pull", k=1),
        compress=LOSSLESS,
        pace=PaceSection(local_steps=2, rounds=ROUNDS, quorum=3),
    )
    agreed = msgspec.structs.replace(
        agreed, mix=msgspec.structs.replace(agreed.mix, kind="gather"), robust=msgspec.structs.replace(agreed.robust, rule="mean")
    )
    swarm = story(agreed, seed)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, ROUNDS))
        seen = snapshots(swarm)
    for peer, it in seen.items():
        assert it.ranks == tuple(sorted(seen))
        assert len(it.links) == 1
        assert it.ranks.index(peer) in it.links[0]
        assert it.distance > 0.0
    every = [(t, peer) for peer, it in seen.items() for t in it.transactions if t.outcome == "committed"]
    asked = {(peer, t.peer, t.number): t.bytes_received for t, peer in every if t.asked}
    told = {(t.peer, peer, t.number): t.bytes_sent for t, peer in every if not t.asked}
    assert len(asked) >= 3 * (ROUNDS - 1)
    assert asked.items() <= told.items()


@virtual(0)
async def test_a_slow_member_is_named_by_those_that_wait_for_it_and_is_told_how_far_they_are(seed):
    swarm = story(digits(3, seed=seed, mix="dsgd", rounds=1000, local_steps=1, max_wait_s=1.0), seed, slow={2: 50.0})
    async with swarm.running(3):
        await until(lambda: take_snapshot(swarm.nodes[0].node).waited_for == swarm.nodes[2].peer_id)
        assert 0.1 < take_snapshot(swarm.nodes[0].node).waited < 1.0
        await until(lambda: take_snapshot(swarm.nodes[2].node).behind > 2)
        fast, _, slow = (take_snapshot(swarm.nodes[index].node) for index in range(3))
        assert fast.behind == 0
        assert slow.behind <= fast.round - slow.round  # what the others have reported so far
        assert not slow.waited_for
        node = swarm.nodes[0].node
        await swarm.leave(0)
        assert take_snapshot(node).members == 3  # its last status counts itself too


@virtual(0)
async def test_in_clock_pace_a_node_draws_its_own_sticky_edges(seed):
    swarm = story(digits(5, seed=seed, pace="clock", rounds=30), seed)
    async with swarm.running(5):
        await until(lambda: rounds_done(swarm, 1))
        swarm.nodes[0].engine.opened.gpu = SimpleNamespace(poll=lambda: (0.5, 1 << 30))
        await until(lambda: rounds_done(swarm, 20))
        assert take_snapshot(swarm.nodes[0].node).resources == Resources(gpu=0.5, gpu_memory_bytes=1 << 30, threads=1)
        for peer, it in snapshots(swarm).items():
            met = {it.ranks[at] for link in it.links for at in link} - {peer}
            assert met
            assert all(it.ranks.index(peer) in link for link in it.links)
            assert met >= {row.peer for row in it.peers if row.committed and row.edge}
            assert it.distance is not None
            assert it.paced_per_s > 0.0


@virtual(0)
async def test_listeners_get_lost_peers_and_state_changes(seed):
    swarm = story(digits(3, seed=seed, rounds=1000, local_steps=2, quorum=2), seed)
    async with swarm.running(2):
        await until(lambda: rounds_done(swarm, 1))
        told = []
        node = swarm.nodes[0].node
        node.events.changes.notify = node.progress.changed = lambda: told.append(take_snapshot(node))
        await swarm.crash(1)
        await until(lambda: any(it.problem is not None and "alone" in it.problem for it in told))
        await swarm.leave(0)
        assert told[-1].state == "leaving"


@virtual(0)
async def test_bans_before_the_network_opens_and_of_earlier_runs_apply(seed):
    swarm = VirtualSwarm(digits(3, seed=seed, rounds=1000, quorum=2), seed=seed)
    async with swarm.running(3), trio.open_nursery() as nursery:
        await carry_out(swarm.nodes[0].node, "ban", {"peer": swarm.nodes[1].peer_id})
        setup = swarm.nodes[0].node.setup
        await swarm.crash(0)
        may_open = trio.Event()
        opened_late = replace(setup.machine, open_network=gated(may_open, setup.machine.open_network))
        node = Node(replace(setup, machine=opened_late), Events(None, clock=setup.machine.unix_time))
        nursery.start_soon(node.run)
        await trio.sleep(0.1)
        await carry_out(node, "ban", {"peer": swarm.nodes[2].peer_id})
        may_open.set()
        await node.listening()
        banned = {swarm.nodes[index].peer_id for index in (1, 2)}
        assert {it.peer for it in swarm.stores[0].decisions} == banned
        for peer in sorted(banned):
            with pytest.raises(PeerUnreachable):
                await node.network.send(peer, "control", b"hello")
        nursery.cancel_scope.cancel()


@virtual(0)
async def test_a_node_has_a_status_in_every_phase_of_its_start(seed):
    swarm = VirtualSwarm(digits(2, seed=seed, rounds=1000, quorum=2), seed=seed)
    async with swarm.running(1), trio.open_nursery() as nursery:
        setup = (await swarm.start(1)).node.setup
        await swarm.crash(1)
        may_open, may_start, machine, store = trio.Event(), trio.Event(), setup.machine, MemoryStore()
        slow = replace(machine, open_network=gated(may_open, machine.open_network), start_engine=gated(may_start, machine.start_engine))
        node = Node(replace(setup, store=store, machine=slow), Events(None, clock=machine.unix_time))
        nursery.start_soon(node.run)
        await trio.sleep(0.1)

        def seen():
            return decode(encode(take_snapshot(node)))

        assert (type(node.phase), seen().state, seen().name) == (Starting, "starting", "")
        with pytest.raises(GossipError, match="still starting"):
            await carry_out(node, "evaluate", {})
        may_open.set()
        while node.progress.state == "starting":  # the manifest arrives soon: check at every step
            await trio.lowlevel.checkpoint()
        assert (type(node.phase), seen().state) == (Joining, "joining")
        assert "no bootstrap peer gives the manifest" in seen().problem
        await until(lambda: isinstance(node.phase, OpeningTask))
        assert store.manifest == swarm.manifest
        assert seen().activity == "starting the engine (importing torch)"
        assert (seen().task, seen().parameters) == ("digits", None)
        may_start.set()
        await until(lambda: seen().state == "training")
        assert (seen().activity, seen().members) == ("", 2)
        assert seen().parameters > 0
        nursery.cancel_scope.cancel()


@virtual(0)
async def test_a_model_that_cannot_be_written_at_the_end_is_an_error_unless_space_is_freed_while_the_node_lingers(seed):
    for freed in (False, True):
        config = NodeConfig(linger_s=10.0, threads=1)
        swarm, ended = VirtualSwarm(digits(1, seed=seed, rounds=2, quorum=1), seed=seed, config=config), []
        async with swarm.running(1):
            setup = swarm.nodes[0].node.setup
            await swarm.crash(0)
            with TemporaryDirectory() as parent:
                folder = Path(parent) / "missing"
                store = replace(setup.store, model=folder / "m.safetensors")
                node = Node(replace(setup, store=store), Events(None, clock=setup.machine.unix_time))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_note_end, node, ended)
                    await until(lambda node=node: node.progress.state == "finished")
                    assert "checkpoints cannot be written" in take_snapshot(node).problem
                    if freed:
                        folder.mkdir()
                assert (folder / "m.safetensors").exists() == freed
        assert ("the model could not be saved" in ended[0]) != freed


async def _note_end(node, ended):
    try:
        await node.run()
    except* GossipError as group:
        ended.append(str(group.exceptions[0]))
    else:
        ended.append("")


@virtual(1)
async def test_a_node_whose_local_steps_are_all_undone_says_so_once():
    swarm = story(digits(3, rounds=40), 1)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 2))
        bad, step = swarm.nodes[0], swarm.nodes[0].engine.trainer.local_step
        learns, step.source = step.source, lambda _step, _round, _into: (math.nan, False)
        await until(lambda: rounds_done(swarm, 12))
        assert events(bad).count("steps_undone") == 1
        assert "steps_undone" not in events(swarm.nodes[1])
        assert "`starling task check`" in take_snapshot(bad.node).problem
        step.source = learns
        await until(lambda: rounds_done(swarm, 15))
        assert take_snapshot(bad.node).problem is None


@virtual(0)
async def test_a_member_is_told_which_protections_its_swarm_does_without():
    """Who joins has not seen the creator's notes."""
    for mix, warned in ((MixSection(kind="dsgd", defended=False), True), (MixSection(kind="dsgd"), False)):
        swarm = story(msgspec.structs.replace(digits(2), mix=mix), 0)
        async with swarm.running(2):
            joiner = swarm.nodes[1]
            await until(lambda node=joiner.node: node.progress.state == "training")
            assert ("unprotected" in events(joiner)) == warned
