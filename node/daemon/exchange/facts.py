"""Facts that an exchange service reports to its subscribers, as numbers: updates themselves do not pass through subscribers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from starling.gossip.exchange.commands import EdgeDropped, Ended, Outcome
from starling.gossip.wire.schema import Message


@dataclass(frozen=True, slots=True)
class About:
    """Base of facts about a message from or to a peer."""

    peer: str
    kind: type[Message]
    number: int
    """Number of the transaction or the request; 0: none."""
    payload_bytes: int
    round: int
    """Round that the message carries; 0: none."""


@dataclass(frozen=True, slots=True)
class Received:
    """A valid message was received, in a frame of so many bytes."""

    message: About
    frame_bytes: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A message is about to be sent, perhaps again."""

    message: About


@dataclass(frozen=True, slots=True)
class Sent:
    """The network took a frame of so many bytes within `seconds`."""

    message: About
    frame_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Accepted:
    """A peer's request is about to be answered, for the first time or again; it may have waited for the local steps."""

    peer: str
    number: int


@dataclass(frozen=True, slots=True)
class Called:
    """The engine replied within `seconds` to a call with a payload, or was lost."""

    peer: str
    number: int
    seconds: float
    clip: float | None
    """The share of the difference that the clip leaves, 0 to 1; None: not known."""


Fact = Received | Queued | Sent | Accepted | Called | Ended | EdgeDropped
Subscriber = Callable[[Fact], object]
"""Receives every fact, in the order in which they happen."""

Noted = Callable[[Mapping[str, Outcome], Collection[str] | None], None]
"""Receives outcomes of a round's exchanges, or of a visit, by peer, and whose update was clipped or excluded; None: that is unknown."""
