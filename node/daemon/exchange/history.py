"""The last exchanges for the status, recorded from the facts that exchange services report.

Nothing depends on it. Bounded: 50 that ended, 512 under way, as peers may begin what they never end.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from starling.gossip.exchange.commands import Ended
from starling.gossip.limits import keep
from starling.gossip.wire.schema import Pull, Pulled, Request, Response
from starling.node.daemon.exchange.facts import About, Accepted, Called, Fact, Queued, Received, Sent
from starling.node.status.snapshot import Transaction, Transfer

WITH_PAYLOAD = frozenset({Request, Response, Pulled})
BEGUN = frozenset({Request, Response, Pull})
"""Messages that begin an exchange."""
MAX_ENDED = 50
MAX_UNDER_WAY = 512
SHOWN_AFTER_S = 2.0  # seconds; shorter exchanges are not shown while they last
SHOWN_UNTIL_S = 600.0  # seconds after which an exchange that has not ended is no longer shown: its peer has forgotten it


@dataclass(slots=True)
class _UnderWay:
    began: float
    sent: int = 0
    received: int = 0
    clip: float | None = None
    waited_s: float | None = None


class Transactions:
    """The recent exchanges of one node; `unix_time` in seconds."""

    def __init__(self, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._ended: deque[Transaction] = deque(maxlen=MAX_ENDED)
        self._under_way: dict[tuple[str, int], _UnderWay] = {}

    @property
    def ended(self) -> tuple[Transaction, ...]:
        """Return the last 50 ended exchanges, oldest first."""
        return tuple(self._ended)

    @property
    def under_way(self) -> tuple[Transfer, ...]:
        """Return the exchanges begun at least `SHOWN_AFTER_S` ago, without those of a peer that we do not answer."""
        now = trio.current_time()
        return tuple(
            Transfer(peer, "exchange", it.sent + it.received, None, now - it.began)
            for (peer, _), it in self._under_way.items()
            if it.sent and SHOWN_AFTER_S <= now - it.began < SHOWN_UNTIL_S
        )

    @property
    def size(self) -> int:
        """Return the number of exchanges under way, shown or not, at most MAX_UNDER_WAY."""
        return len(self._under_way)

    def observe(self, fact: Fact) -> None:
        """Record facts of a transaction, or of a request and its answer."""
        match fact:
            case Received(message) if message.kind in WITH_PAYLOAD:
                self._of(message).received = message.payload_bytes
            case Queued(message) if message.kind in BEGUN:
                self._of(message).sent = message.payload_bytes
            case Sent(message, _, seconds) if message.kind is Pulled:
                self._responded(message, seconds)
            case Accepted(peer, number):
                if (it := self._under_way.get((peer, number))) is not None and it.waited_s is None:
                    it.waited_s = trio.current_time() - it.began
            case Called(peer, number, clip=clip):
                if (it := self._under_way.get((peer, number))) is not None:
                    it.clip = clip
            case Ended():
                self._end(fact)

    def _responded(self, message: About, seconds: float) -> None:
        self._ended.append(
            Transaction(
                self._unix_time(),
                message.peer,
                message.round,
                message.number,
                asked=False,
                outcome="committed",
                bytes_sent=message.payload_bytes,
                seconds=seconds,
            )
        )

    def _end(self, ended: Ended) -> None:
        it = self._under_way.pop((ended.peer, ended.seq), None)
        figures = () if it is None else (it.sent, it.received, it.clip, trio.current_time() - it.began, it.waited_s)
        asked = ended.role == "initiator"
        self._ended.append(Transaction(self._unix_time(), ended.peer, ended.round, ended.seq, asked, ended.outcome, *figures))

    def _of(self, message: About) -> _UnderWay:
        key = message.peer, message.number
        it = self._under_way.get(key)
        if it is None:
            it = _UnderWay(trio.current_time())
            keep(self._under_way, key, it, MAX_UNDER_WAY)
        return it
