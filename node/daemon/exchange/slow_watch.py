"""Times how exchanges go, has `starling.gossip.exchange.slowness` say what became slow, and tells the owner once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from starling.gossip.exchange.slowness import Kind, Named, Slowness
from starling.gossip.limits import keep
from starling.node.daemon.context import Limits
from starling.node.interfaces import Reporter
from starling.node.status.format import short

MIN_MEASURED_BYTES = 32 << 10  # smaller frames vanish into socket buffers and do not measure the link
MAX_ASKED = 256
WORDS: Mapping[tuple[Kind, bool], str] = {
    ("send", False): "this node's upload is {times:.1f} times as slow as before ({some} of {of} peers)",
    (
        "answer",
        False,
    ): "answers take {times:.1f} times as long as before ({some} of {of} peers): this machine or its line is busy",
    ("send", True): "sending to {peer} is {times:.1f} times as slow as before",
    ("answer", True): "{peer} takes {times:.1f} times as long to answer as before",
}


@dataclass(slots=True)
class SlowWatch:
    """Of one node's pairwise exchanges."""

    report: Reporter
    limits: Limits
    _core: Slowness = field(default_factory=Slowness)
    _asked: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # the last request to each peer, and when it was sent
    _told: frozenset[tuple[Kind, str]] = frozenset()
    _cap: int = -1

    @property
    def words(self) -> tuple[str, ...]:
        """A line for each thing that became slow."""
        return tuple(map(_words, self._core.named()))

    def asked(self, peer: str, number: int) -> None:
        """A request was sent to a peer; how long an answer takes counts from the last time."""
        keep(self._asked, peer, (number, trio.current_time()), MAX_ASKED)

    def sent(self, peer: str, count: int, seconds: float) -> None:
        """A frame of `count` bytes was handed to the network within `seconds`."""
        if self.limits.up_bytes_per_s != self._cap:
            self._cap = self.limits.up_bytes_per_s
            self._core.capped()
        if count >= MIN_MEASURED_BYTES and seconds > 0.0 and self._core.sent(peer, count, seconds):
            self._tell()

    def answered(self, peer: str, number: int) -> None:
        """A response of a peer was received."""
        asked, at = self._asked.pop(peer, (0, 0.0))
        took_s = trio.current_time() - at
        if asked == number and took_s > 0.0 and self._core.answered(peer, took_s):
            self._tell()

    def forget(self, peer: str) -> None:
        """A peer is gone."""
        self._core.forget(peer)
        self._asked.pop(peer, None)

    def _tell(self) -> None:
        named = self._core.named()
        for it in named:
            if (it.kind, it.peer) not in self._told:
                self.report.event(
                    "became_slow", _words(it), level="warning", peer=it.peer or None, times=round(it.times, 1)
                )
        self._told = frozenset((it.kind, it.peer) for it in named)


def _words(it: Named) -> str:
    some, of = it.edges
    return WORDS[it.kind, bool(it.peer)].format(peer=short(it.peer), times=it.times, some=some, of=of)
