"""Events of a yamux session that the peer causes."""

from dataclasses import dataclass


class Violation(Exception):
    """The peer broke the rules of the session, which ends; the reason is in snake_case, as in RemoteProtocolError."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Event:
    """An action of the peer on a stream (0: the session)."""

    stream: int = 0


class Opened(Event):
    """The peer opened the stream."""


@dataclass(frozen=True)
class Received(Event):
    """Bytes on the stream, in order, maybe a view of what `receive` got. Call `consumed` when they are processed."""

    data: bytes | memoryview = b""


class Finished(Event):
    """The peer closed its direction of the stream."""


class Gone(Event):
    """The peer reset the stream."""


class Credited(Event):
    """More may be sent on the stream."""


class Ended(Event):
    """The peer ended the session in order."""
