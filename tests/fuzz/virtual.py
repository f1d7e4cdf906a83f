"""Streams whose content a script determines, and trio programs that run without waiting."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self, TypeVar

import trio
import trio.testing

T = TypeVar("T")


class Script:
    """A stream from a peer of any intent, as `trio.SocketStream` has it: it sends these pieces and then ends.

    Args:
        pieces: what it sends.
        most_sent: how often it can be written to before it breaks.
        quiet: at the end it says nothing any more, instead of ending.
    """

    def __init__(self, pieces: Iterable[bytes], *, most_sent: int = 1000, quiet: bool = False) -> None:
        self._pieces = iter([piece for piece in pieces if piece])
        self._most_sent, self._quiet = most_sent, quiet
        self.sent: list[bytes] = []
        self.closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        piece = next(self._pieces, b"")
        if not piece and self._quiet:
            await trio.sleep_forever()
        return piece

    async def send_all(self, data: bytes) -> None:
        """Keep it."""
        await trio.lowlevel.checkpoint()
        if len(self.sent) >= self._most_sent:
            raise trio.BrokenResourceError
        self.sent.append(bytes(data))

    async def aclose(self) -> None:
        """Be done."""
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def at_once(program: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Return the result of an async program in virtual time: waits take no time, and a program that waits for ever fails."""
    return trio.run(_bounded, program, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))


LONGEST_S = 1e6


async def _bounded(program: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    with trio.fail_after(LONGEST_S):
        return await program(*arguments)
