"""Parts of a daemon on a network in memory: reporters that remember, admission and its members."""

from __future__ import annotations

import trio


class Told:
    """A reporter that remembers."""

    def __init__(self):
        self.events, self.faults = [], []

    def event(self, name, text, *, level="info", **fields):
        assert "\n" not in text
        self.events.append((trio.current_time(), name, text))

    def fault(self, peer, reason):
        self.faults.append((peer, reason))

    def named(self, name):
        return [at for at, event, _ in self.events if event == name]


def agreed(nodes):
    return all(set(node.membership.members) == {n.peer for n in nodes} for node in nodes)


async def until(condition, limit_s):
    began = trio.current_time()
    with trio.fail_after(limit_s):
        while not condition():  # noqa: ASYNC110 - asks, from outside, what nobody signals
            await trio.sleep(0.01)
    return trio.current_time() - began
