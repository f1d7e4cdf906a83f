"""Time exchanges, detect by `starling.gossip.exchange.slowness` what became slow, and tell the owner once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from starling.gossip.exchange.slowness import Kind, Named, Slowness
from starling.gossip.limits import keep
from starling.gossip.wire.schema import Request, Response
from starling.node.daemon.context import Limits
from starling.node.daemon.exchange.facts import Fact, Received, Sent
from starling.node.interfaces import Reporter
from starling.node.status.format import short

MIN_MEASURED_BYTES = 32 << 10  # smaller frames fit socket buffers and do not measure the link
MAX_REQUESTED = 256
WORDS: Mapping[tuple[Kind, bool], str] = {
    ("send", False): "this node's upload is {times:.1f} times as slow as before ({some} of {of} peers)",
    ("answer", False): "answers take {times:.1f} times as long as before ({some} of {of} peers): this machine or its line is busy",
    ("send", True): "sending to {peer} is {times:.1f} times as slow as before",
    ("answer", True): "{peer} takes {times:.1f} times as long to answer as before",
}


@dataclass(slots=True)
class SlowWatch:
    """Watches for exchanges of one node that have become slow."""

    report: Reporter
    limits: Limits
    _core: Slowness = field(default_factory=Slowness)
    _requested: dict[str, tuple[int, float]] = field(default_factory=dict)  # the last request to each peer, and when it was sent
    _told: frozenset[tuple[Kind, str]] = frozenset()
    _cap: int = -1

    @property
    def words(self) -> tuple[str, ...]:
        """Return a line for each thing that became slow."""
        return tuple(map(_words, self._core.named()))

    @property
    def measured(self) -> int:
        """Return the number of measured edges, for each kind."""
        return self._core.size

    def observe(self, fact: Fact) -> None:
        """Record the times of sent frames, and of answers, counted from the last time that they were requested."""
        match fact:
            case Sent(message, frame_bytes, seconds):
                if message.kind is Request:
                    keep(self._requested, message.peer, (message.number, trio.current_time()), MAX_REQUESTED)
                self._sent(message.peer, frame_bytes, seconds)
            case Received(message) if message.kind is Response:
                self._answered(message.peer, message.number)

    def _sent(self, peer: str, count: int, seconds: float) -> None:
        if self.limits.up_bytes_per_s != self._cap:
            self._cap = self.limits.up_bytes_per_s
            self._core.capped()
        if count >= MIN_MEASURED_BYTES and seconds > 0.0 and self._core.sent(peer, count, seconds):
            self._tell()

    def _answered(self, peer: str, number: int) -> None:
        requested, at = self._requested.pop(peer, (-1, 0.0))
        took_s = trio.current_time() - at
        if requested == number and took_s > 0.0 and self._core.answered(peer, took_s):
            self._tell()

    def forget(self, peer: str) -> None:
        """Delete the measurements of a peer that is gone."""
        self._core.forget(peer)
        self._requested.pop(peer, None)

    def _tell(self) -> None:
        named = self._core.named()
        for it in named:
            if (it.kind, it.peer) not in self._told:
                self.report.event("became_slow", _words(it), level="warning", peer=it.peer or None, times=round(it.times, 1))
        self._told = frozenset((it.kind, it.peer) for it in named)


def _words(it: Named) -> str:
    some, of = it.edges
    return WORDS[it.kind, bool(it.peer)].format(peer=short(it.peer), times=it.times, some=some, of=of)
