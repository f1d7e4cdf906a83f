"""Tells those who look on what goes to and comes from peers: in numbers, so that an update passes through none of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starling.gossip.exchange.patience import EXCHANGE_PAYLOADS, Patience
from starling.gossip.wire.schema import Exchange, Pull, Pulled, Pulling, Request, Response
from starling.node.daemon.exchange.budget import Budget
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.slow_watch import SlowWatch
from starling.node.interfaces import Reporter


class Traffic(Protocol):
    """Frames of one node's exchanges."""

    def queued(self, peer: str, message: Exchange | Pulling) -> None:
        """Note that a message is about to go out, perhaps again."""
        ...

    def sent(self, peer: str, message: Exchange | Pulling, size: int, seconds: float) -> None:
        """Note that a message was handed to the network, as a frame of `size` bytes, within `seconds`."""
        ...


@dataclass(slots=True)
class PairwiseTraffic:
    """Frames of pairwise exchanges: how fast they are tells how large exchanges may be, how long they may take, and what became slow."""

    report: Reporter
    budget: Budget
    watch: SlowWatch
    transactions: Transactions
    patience: Patience
    moved: Callable[[str, int], object]
    """Told (peer, bytes) of every frame."""
    _told_slow: bool = False

    def received(self, peer: str, message: Exchange, size: int) -> None:
        """Note a valid message of a peer, a frame of `size` bytes."""
        self.moved(peer, size)
        if isinstance(message, Response):
            self.watch.answered(peer, message.seq)
        if isinstance(message, Request | Response):
            self.transactions.received(peer, message.seq, len(message.payload))

    def queued(self, peer: str, message: Exchange | Pulling) -> None:
        """Note that a message is about to go out, perhaps again."""
        if isinstance(message, Request | Response):
            self.transactions.sent(peer, message.seq, len(message.payload))

    def sent(self, peer: str, message: Exchange | Pulling, size: int, seconds: float) -> None:
        """Learn from a frame that was handed to the network, and report once that payloads take too long."""
        self.budget.observe(peer, size, seconds)
        self.moved(peer, size)
        if isinstance(message, Request):
            self.watch.asked(peer, message.seq)
        self.watch.sent(peer, size, seconds)
        if isinstance(message, Request | Response) and message.payload:
            self.patience.transfers.observe(peer, seconds, len(message.payload))
            self._check()

    def _check(self) -> None:
        patience, most_s = self.patience, self.patience.deadline.max_wait_s
        if EXCHANGE_PAYLOADS * patience.transfers.usual_s() > most_s and not self._told_slow:
            self._told_slow = True
            text = (
                f"a payload takes {patience.transfers.usual_s():,.1f} s to be sent, too long for exchanges of {most_s:g} s: they get "
                f"up to {patience.longest_s:,.1f} s and are as much rarer; a higher cap (`starling limits --up`), or in the next manifest "
                "a smaller compress.budget_bytes or a longer pace.slot_s, makes them frequent"
            )
            self.report.event("exchanges_slow", text, level="warning")


@dataclass(slots=True)
class PulledTraffic:
    """Frames of pulled exchanges."""

    transactions: Transactions
    payload_bytes: int = 0
    """Payload bytes sent."""

    def received(self, peer: str, message: Pulled) -> None:
        """Note a vector of a peer."""
        self.transactions.received(peer, message.nonce, len(message.payload))

    def queued(self, peer: str, message: Exchange | Pulling) -> None:
        """Note that a request is about to go out, perhaps again."""
        if isinstance(message, Pull):
            self.transactions.sent(peer, message.nonce, 0)

    def sent(self, peer: str, message: Exchange | Pulling, size: int, seconds: float) -> None:
        """Note that our vector was sent."""
        if isinstance(message, Pulled):
            count = len(message.payload)
            self.payload_bytes += count
            self.transactions.responded(peer, message.round, message.nonce, count, seconds)
