"""Requests on the state lane: repeated until an answer comes or the time is over."""

from contextlib import suppress
from typing import Any, TypeVar

import trio

from starling.gossip.wire import frames
from starling.gossip.wire.schema import Chunk, Digests, ManifestReply, Message, StageReply, StateOffer
from starling.node.net.api import Network

REPLY_S = 10.0
SLOW_BYTES_PER_S = 64 << 10  # rate that is assumed on an unmeasured line: a long answer may take so much longer
# seconds after which a request is repeated, each time after twice the wait, up to the second number
FIRST_ASK_S, ASK_AGAIN_S = 0.125, 1.0

Reply = TypeVar("Reply", ManifestReply, StateOffer, Chunk, Digests, StageReply)


class Asking:
    """Requests to peers on a network; the reader of the lane passes replies to `route`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._waiting: dict[tuple[str, type, int], trio.MemorySendChannel[Message]] = {}

    @property
    def under_way(self) -> int:
        """Return the number of requests that wait for an answer."""
        return len(self._waiting)

    def route(self, peer: str, message: Message) -> None:
        """Give a message to the task that waits for it; drop it if nobody requested it."""
        if (waiting := self._waiting.get((peer, type(message), _key(message)))) is not None:
            with suppress(trio.WouldBlock):  # a request that was repeated was answered twice
                waiting.send_nowait(message)

    async def ask(self, peer: str, kind: type[Reply], query: Message, late_s: float = 0.0, *, timeout_s: float = REPLY_S) -> Reply:
        """Return the peer's reply of a kind to a query, which is repeated until then. Raises TransportError, trio.TooSlowError: no answer.

        A reply that is under way for less than `late_s` is not requested again; `timeout_s`: how long the peer may take to make it.
        """
        send, receive = trio.open_memory_channel[Any](1)
        key = (peer, kind, _key(query))
        self._waiting[key] = send
        wait_s = FIRST_ASK_S
        try:
            with trio.fail_after(timeout_s + 2.0 * late_s):
                while True:
                    await self._network.send(peer, "state", frames.encode(query))
                    again_s, wait_s = wait_s, min(2.0 * wait_s, ASK_AGAIN_S)
                    with trio.move_on_after(again_s + late_s):
                        reply: Reply = await receive.receive()
                        return reply
        finally:
            self._waiting.pop(key, None)
            send.close()
            receive.close()


def _key(message: Message) -> int:
    """Return a number that is equal for a query and its reply."""
    number: int = getattr(message, "nonce", getattr(message, "offset", 0))
    return number
