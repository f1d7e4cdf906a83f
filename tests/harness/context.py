"""A node's context for the test of one service: anything that the test does not give is missing or a default."""

import msgspec

from starling.node.config.schema import Manifest, NodeConfig
from starling.node.daemon.context import Machine, NodeContext, NodeSetup
from starling.node.daemon.store import MemoryStore
from starling.node.identity import Identity

SWARM = "s" + "a" * 32


class NoEngine:
    """An engine that no test of this service may call."""

    async def call(self, request):
        raise AssertionError(request)


def nothing_to_open(*_given):
    """Stand in for opening a network or an engine that the test has opened itself or does not need."""
    raise AssertionError(_given)


def context(
    *,
    network,
    report,
    identity=None,
    manifest=None,
    swarm=SWARM,
    incarnation=1,
    engine=None,
    unix_time=lambda: 1e9,
    config=None,
    **sections,
):
    """Make a context; sections are those of the manifest."""
    agreed = msgspec.structs.replace(manifest or Manifest(seed=0), **sections)
    machine = Machine(nothing_to_open, nothing_to_open, unix_time)
    identity = identity or Identity.from_seed(bytes(32))
    setup = NodeSetup(identity, config or NodeConfig(), swarm, MemoryStore(agreed), machine)
    return NodeContext(setup, agreed, incarnation, network, engine or NoEngine(), report)
