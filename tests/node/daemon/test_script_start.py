"""Whole nodes of a swarm of scripts, up to the call that opens the engine with the creator's initial model."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.node import run_directory
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest, NodeConfig, TaskSection
from starling.node.config.toml import apply_set
from starling.node.daemon.app import Fetching, Node, OpeningTask
from starling.node.daemon.context import Machine, NodeSetup
from starling.node.daemon.events import Events
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.daemon.store import MemoryStore
from starling.node.identity import Identity
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from starling.node.rpc import calls
from starling.node.status.snapshot import decode, encode
from starling.node.storage.run_dir import RunDir
from tests.harness.daemons import until
from tests.harness.virtual import virtual

DATA = b"".join(at.to_bytes(4, "big") for at in range(750_000))  # 3 MB
LINES = ("metric loss, lower is better", "model 750000 1 " + "ab" * 16, "float32 trained 750000 w")


class Engine:
    """Records the call that opens it, and never answers."""

    def __init__(self):
        self.open_request = None

    async def call(self, request):
        assert isinstance(request, calls.Open)
        self.open_request = request
        await trio.sleep_forever()


async def inline(work):
    await trio.sleep(1e-3)
    return work()


def created(folder, *assignments):
    """Create a swarm in a directory and return it."""
    (folder / "begin.safetensors").write_bytes(DATA)
    manifest = Manifest(task=TaskSection(kind="script", start=str(folder / "begin.safetensors"), fingerprint=LINES))
    place, _ = run_directory.create(folder / "creator", apply_set(manifest, assignments), NodeConfig(linger_s=1e6))
    return place


def joined(folder, creator):
    """Return a member that has an identity and the swarm's id."""
    place = RunDir.create(folder)
    address = address_of(Identity.load_or_create(creator.key).peer_id)
    place.write_config(NodeConfig(bootstrap=(address,)))
    return place


def node_of(hub, place, swarm):
    """Run the node of a run directory on a network in memory; return it, its engine, and a function that ends it."""
    identity, engine = Identity.load_or_create(place.key), Engine()

    @asynccontextmanager
    async def network(_report):
        try:
            yield hub.join(identity.peer_id)
        finally:
            hub.crash(identity.peer_id)

    @asynccontextmanager
    async def start_engine():
        yield engine

    machine = Machine(network, start_engine, lambda: 1.7e9 + trio.current_time(), inline)
    setup = NodeSetup(identity, place.read_config(), swarm, place, machine)
    return Node(setup, Events(None, clock=machine.unix_time)), engine


@asynccontextmanager
async def running(*nodes):
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(node.run)
            await node.listening()
        yield
        nursery.cancel_scope.cancel()


def test_a_created_swarm_of_scripts_is_unchanged_when_read_again(tmp_path):
    place = created(tmp_path, "task.metric=accuracy", "task.higher_is_better=true")
    manifest = place.read_manifest()
    assert manifest.task.fingerprint == LINES
    assert manifest.task.params() == {"metric": "accuracy", "higher_is_better": True}
    assert manifest.task.start.startswith("chunks:")
    assert place.start.read_bytes() == DATA
    assert place.read_config().start == "", "the run directory has it, wherever the creator's file goes"
    assert manifests.from_bytes(manifests.to_bytes(manifest), place.swarm(), "peer") == manifest
    again, _ = run_directory.create(tmp_path / "again", manifest, NodeConfig(start=str(place.start)))
    assert again.start.read_bytes() == DATA
    assert again.read_manifest().task == manifest.task


def test_an_initial_file_already_in_the_run_directory_is_not_copied(tmp_path):
    place = RunDir.create(tmp_path / "n")
    place.start.write_bytes(DATA)
    before = place.start.stat().st_ino
    run_directory.create(tmp_path / "n", Manifest(task=TaskSection(kind="script", start=str(place.start))), NodeConfig())
    assert place.start.stat().st_ino == before


def test_without_a_start_nothing_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.start: .*none is named"):
        run_directory.create(tmp_path / "n", Manifest(task=TaskSection(kind="script")), NodeConfig())
    assert not (tmp_path / "n").exists()


@virtual
async def test_a_newcomer_fetches_manifest_and_start_and_opens_its_engine_with_it(tmp_path):
    creator = created(tmp_path)
    hub, swarm = MemoryHub(), creator.swarm()
    member = joined(tmp_path / "member", creator)
    (first, _), (second, engine) = node_of(hub, creator, swarm), node_of(hub, member, swarm)
    async with running(first, second):
        await until(lambda: engine.open_request is not None)
        assert member.start.read_bytes() == DATA
        assert engine.open_request.start == str(member.start)
        assert member.read_manifest() == creator.read_manifest()
        assert [event.name for event in second.events.recent][-2:] == ["start_fetching", "start_fetched"]
        third = joined(tmp_path / "third", member)  # the second of these is the only peer
        node, engine = node_of(hub, third, swarm)
        async with running(node):
            await until(lambda: engine.open_request is not None)
            assert third.start.read_bytes() == DATA


@virtual
async def test_a_restart_with_a_damaged_initial_model_fetches_the_damaged_chunks(tmp_path):
    creator = created(tmp_path)
    hub, swarm = MemoryHub(), creator.swarm()
    member = joined(tmp_path / "member", creator)
    member.write_manifest(creator.read_manifest())
    member.start.write_bytes(b"x" + DATA[1:])
    (first, _), (second, engine) = node_of(hub, creator, swarm), node_of(hub, member, swarm)
    async with running(first, second):
        await until(lambda: engine.open_request is not None)
        assert member.start.read_bytes() == DATA
        assert first.network.total_traffic.bytes_sent < 1.5e6, "one chunk of three"


@virtual
async def test_the_status_says_what_a_newcomer_waits_for(tmp_path):
    creator = created(tmp_path)
    hub, swarm = MemoryHub(), creator.swarm()
    creator.start.unlink()
    (first, _), (second, engine) = node_of(hub, creator, swarm), node_of(hub, joined(tmp_path / "m", creator), swarm)
    async with running(first, second):
        await until(lambda: isinstance(second.phase, Fetching))
        shown = decode(encode(take_snapshot(second)))
        assert (shown.state, shown.activity) == ("joining", "fetching the model that the swarm begins with")
        assert (shown.task, shown.problem) == ("script", None)
        await trio.sleep(1000.0)
        assert isinstance(first.phase, Fetching), "a creator waits for members that have it"
        assert engine.open_request is None
        creator.start.write_bytes(DATA)  # as the error line says
        await until(lambda: engine.open_request is not None)
        assert isinstance(first.phase, OpeningTask)
        assert sorted(each.name for each in creator.path.glob("start*")) == ["start.safetensors"]


@virtual
async def test_an_engine_that_waits_for_a_script_is_never_given_up(tmp_path):
    creator = created(tmp_path)
    node, engine = node_of(MemoryHub(), creator, creator.swarm())
    async with running(node):
        await trio.sleep(50_000.0)
        assert isinstance(node.phase, OpeningTask)
        assert engine.open_request is not None
        assert "engine_restarting" not in {event.name for event in node.events.recent}


@virtual
async def test_without_a_run_directory_the_settings_give_the_initial_file(tmp_path):
    """As in simulations, whose nodes have no directories."""
    creator = created(tmp_path)
    node, engine = node_of(MemoryHub(), creator, creator.swarm())
    config = structs.replace(node.setup.config, start="elsewhere")
    node.setup = replace(node.setup, store=MemoryStore(node.manifest), config=config)
    async with running(node):
        await until(lambda: engine.open_request is not None)
        assert engine.open_request.start == "elsewhere"


@virtual
async def test_settings_about_local_steps_are_refused_before_anything_is_fetched(tmp_path):
    creator = created(tmp_path)
    node, engine = node_of(MemoryHub(), creator, creator.swarm())
    node.setup = replace(node.setup, config=apply_set(node.setup.config, ("privacy.noise=1",)))
    with pytest.raises(BaseExceptionGroup) as raised:
        await node.run()
    assert raised.group_contains(ConfigError, match=r"privacy\.noise: ")
    assert engine.open_request is None
