"""A node's context for the test of one service: what the test does not give is missing or a default."""

import msgspec

from starling.node.config.schema import Manifest, NodeConfig
from starling.node.daemon.context import Limits, NodeContext
from starling.node.identity import Identity

SWARM = "s" + "a" * 32


class NoEngine:
    """An engine that no test of this service may call."""

    async def call(self, request):
        raise AssertionError(request)


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
    """Sections are those of the manifest."""
    agreed = msgspec.structs.replace(manifest or Manifest(seed=0), **sections)
    identity = identity or Identity.from_seed(bytes(32))
    config = config or NodeConfig()
    return NodeContext(
        identity,
        config,
        agreed,
        swarm,
        incarnation,
        network,
        engine or NoEngine(),
        report,
        unix_time,
        Limits.of(config),
    )
