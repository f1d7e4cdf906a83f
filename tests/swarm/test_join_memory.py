"""A newcomer estimates its memory from the manifest and checks it before it downloads a model."""

from dataclasses import replace

import msgspec
import pytest
import trio

from starling.gossip.errors import ConfigError
from starling.node.config import memory_estimate
from starling.node.daemon.app import Node
from starling.node.daemon.events import Events
from starling.node.daemon.store import MemoryStore
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.stories import virtual
from tests.harness.swarms import digits, until


@virtual(0)
async def test_too_little_free_memory_is_refused_before_the_engine_starts_unless_the_owner_insists(seed):
    swarm = VirtualSwarm(digits(3, seed=seed, rounds=1000, quorum=2), seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_estimate, "here", lambda _config: 10**8)
        async with swarm.running(1), trio.open_nursery() as nursery:  # a node that has the manifest already is not asked
            setup, other = [await _ended(swarm, index) for index in (1, 2)]
            store, started = MemoryStore(), []

            def never(*given):
                started.append(given)
                raise AssertionError

            machine = replace(setup.machine, start_engine=never)
            poor = Node(replace(setup, store=store, machine=machine), Events(None, clock=machine.unix_time))
            with pytest.raises(ConfigError, match=r"memory: this swarm's task.*100 MB are free.*--anyway") as refused:
                await _run(poor)
            assert "\n" not in str(refused.value)
            assert (store.manifest, started) == (None, [])
            anyway = msgspec.structs.replace(setup.config, memory_check=False)
            node = Node(replace(other, store=MemoryStore(), config=anyway), Events(None, clock=machine.unix_time))
            nursery.start_soon(node.run)
            await until(lambda: node.progress.state == "training")
            nursery.cancel_scope.cancel()


async def _run(node):
    try:
        await node.run()
    except* ConfigError as group:
        error = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    else:
        return
    raise error


async def _ended(swarm, index):
    """Return what a node was started with that has ended again."""
    setup = (await swarm.start(index)).node.setup
    await swarm.crash(index)
    return setup
