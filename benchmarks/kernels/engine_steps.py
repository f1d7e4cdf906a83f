"""Local steps of an engine that has exchanged with another one, as its driver runs them.

    python -m starling.kernels.engine_steps KEYS        as `starling.kernels.slices` says

Only local steps are counted: the exchanges are over before the first, so that there is a correction to apply, and the round in which they
are done does not end.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, cast

from starling.gossip.errors import ConfigError, GossipError
from starling.kernels import slices
from starling.kernels.memory import exchange
from starling.kernels.plain import agreed
from starling.node.config.schema import Manifest
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.rpc.pipe import Pipe

ROUNDS, STEPS = 4, 4  # rounds and local steps before the measured ones
EVER = 10**6  # local steps of the round that is measured


class Called:
    """An engine of this process that is called by hand, like the process of `starling.kernels.memory.Worker`."""

    def __init__(self, manifest: Manifest, shard: int, label: str) -> None:
        self.engine = Worker(work=time.thread_time)
        self.opened = cast("calls.Opened", self.done(calls.Open(manifest, "", shard, "cpu", 1, "", label)))

    def done(self, call: calls.Request) -> calls.Reply:
        """Return the reply to a call, after all of its work. Raises ConfigError, GossipError: it was refused."""
        reply = self.engine.handle(call)
        while reply is None:
            reply = self.engine.step()
        if isinstance(reply, calls.Refused):
            raise (ConfigError if reply.kind == "config" else GossipError)(reply.reason)
        return reply


def exchanged(manifest: Manifest) -> Called:
    """Return an engine that has done some rounds with another one, which had other samples."""
    hub, peer = Called(manifest, 0, "hub"), Called(manifest, 1, "peer")
    for number in range(ROUNDS):
        for each in (hub, peer):
            each.done(calls.Train(number, STEPS))
        exchange(hub, peer, "peer", number, leads=number % 2 == 0)
        for each in (hub, peer):
            each.done(calls.Mix(number))
    return hub


def loop(keys: Mapping[str, Any]) -> tuple[slices.Step, int]:
    """Return what does a local step, and d."""
    hub = exchanged(agreed(keys))
    engine = hub.engine
    engine.handle(calls.Train(ROUNDS, EVER))
    daemon, ours = socket.socketpair()
    pipe = Pipe(ours)

    def step(_open: socket.socket = daemon) -> None:
        if engine.busy and not pipe.ready():
            engine.step()

    return step, hub.opened.parameters


if __name__ == "__main__":
    sys.exit(slices.main(sys.argv[1:], loop))
