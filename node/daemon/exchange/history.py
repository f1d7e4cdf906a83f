"""The last exchanges that ended, for the status: recorded from what the exchange services send and receive.

Nothing depends on it. Bounded: 50 that ended, 512 under way, as peers may begin what they never end.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from starling.gossip.exchange.commands import Ended, Outcome
from starling.gossip.limits import keep
from starling.node.status.snapshot import Transaction, Transfer

MAX_ENDED = 50
MAX_UNDER_WAY = 512
SHOWN_AFTER_S = 2.0  # an exchange that takes no longer is of no interest while it lasts
SHOWN_UNTIL_S = 600.0  # an exchange not ended by then was forgotten by its peer


@dataclass(slots=True)
class _UnderWay:
    began: float
    sent: int = 0
    received: int = 0
    clip: float | None = None
    waited_s: float | None = None


class Transactions:
    """Exchanges of one node; `unix_time` in seconds."""

    def __init__(self, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._ended: deque[Transaction] = deque(maxlen=MAX_ENDED)
        self._under_way: dict[tuple[str, int], _UnderWay] = {}

    @property
    def ended(self) -> tuple[Transaction, ...]:
        """The last 50, oldest first."""
        return tuple(self._ended)

    @property
    def under_way(self) -> tuple[Transfer, ...]:
        """Exchanges begun at least `SHOWN_AFTER_S` ago, without those of a peer that we do not answer."""
        now = trio.current_time()
        return tuple(
            Transfer(peer, "exchange", it.sent + it.received, None, now - it.began)
            for (peer, _), it in self._under_way.items()
            if it.sent and SHOWN_AFTER_S <= now - it.began < SHOWN_UNTIL_S
        )

    def sent(self, peer: str, number: int, payload_bytes: int) -> None:
        """A request or response of ours is about to go out, perhaps again."""
        self._of(peer, number).sent = payload_bytes

    def received(self, peer: str, number: int, payload_bytes: int) -> None:
        """A valid request or response of a peer was received."""
        self._of(peer, number).received = payload_bytes

    def accepted(self, peer: str, number: int) -> None:
        """A peer's request is about to be answered, for the first time or again; it may have waited for our local steps."""
        if (it := self._under_way.get((peer, number))) is not None and it.waited_s is None:
            it.waited_s = trio.current_time() - it.began

    def clipped(self, peer: str, number: int, left: float | None) -> None:
        """The clip leaves the share `left` of the difference, 0 to 1; None: not known."""
        if (it := self._under_way.get((peer, number))) is not None:
            it.clip = left

    def end(self, ended: Ended) -> None:
        """A transaction of an edge is over, or one that was due did not begin (number 0)."""
        self._end(ended.peer, ended.round, ended.seq, ended.outcome, asked=ended.role == "initiator")

    def answered(self, peer: str, round: int, number: int, outcome: Outcome) -> None:
        """A request of ours is over."""
        self._end(peer, round, number, outcome, asked=True)

    def responded(self, peer: str, round: int, number: int, payload_bytes: int, seconds: float) -> None:
        """Our vector was sent to a peer within `seconds`."""
        self._ended.append(
            Transaction(
                self._unix_time(), peer, round, number, asked=False, outcome="committed", bytes_sent=payload_bytes, seconds=seconds,
            )
        )  # fmt: skip

    def _end(self, peer: str, round: int, number: int, outcome: Outcome, *, asked: bool) -> None:
        it = self._under_way.pop((peer, number), None)
        figures = () if it is None else (it.sent, it.received, it.clip, trio.current_time() - it.began, it.waited_s)
        self._ended.append(Transaction(self._unix_time(), peer, round, number, asked, outcome, *figures))

    def _of(self, peer: str, number: int) -> _UnderWay:
        it = self._under_way.get((peer, number))
        if it is None:
            it = _UnderWay(trio.current_time())
            keep(self._under_way, (peer, number), it, MAX_UNDER_WAY)
        return it
