"""Engines that pull vectors from each other."""

import msgspec

from starling.node.config.schema import CompressSection, OverlaySection, RobustSection
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, opened
from tests.harness.sections import taken


def gathering(rule="mean", **changes):
    agreed = manifest(mix="gather", nodes=4, compress=CompressSection(select="full", response="fp16"), **changes)
    return msgspec.structs.replace(agreed, overlay=OverlaySection(kind="pull", k=3), robust=taken(RobustSection, rule=rule, f=1))


def trained(names="abcd", rule="mean", round=0):
    """Return engines after the local steps of a round, and what they publish."""
    agreed = gathering(rule)
    engines = {name: opened(agreed, shard, name) for shard, name in enumerate(names)}
    for engine in engines.values():
        done(engine, calls.Train(round, 3))
    return engines, {name: done(engine, calls.Publish(round)) for name, engine in engines.items()}


def receive(engine, peer, published):
    return engine.handle(calls.VerifyUpdate(peer, published.digest, published.payload))
