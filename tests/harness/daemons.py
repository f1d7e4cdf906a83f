"""Parts of a daemon on a network in memory: a reporter that records, and conditions to wait for."""

import trio


class Reports:
    """A reporter that records events, as (name, text, level, fields), and faults, as (peer, reason)."""

    def __init__(self):
        self.events, self.faults, self.times = [], [], []

    def event(self, name, text, *, level="info", **fields):
        assert "\n" not in text
        self.events.append((name, text, level, fields))
        self.times.append(trio.current_time())

    def fault(self, peer, reason):
        self.faults.append((peer, reason))

    @property
    def names(self):
        return [event[0] for event in self.events]

    @property
    def texts(self):
        return [event[1] for event in self.events]

    def named(self, name):
        """Return the times of an event."""
        return [at for at, event in zip(self.times, self.names, strict=True) if event == name]


def agreed(nodes):
    return all(set(node.membership.members) == {n.peer for n in nodes} for node in nodes)


async def until(condition, limit_s=200.0, every_s=0.01):
    """Wait for a condition, which is looked at this often; return the virtual seconds it took."""
    began = trio.current_time()
    with trio.fail_after(limit_s):
        while not condition():  # noqa: ASYNC110 - asks, from outside, what nothing signals
            await trio.sleep(every_s)
    return trio.current_time() - began
