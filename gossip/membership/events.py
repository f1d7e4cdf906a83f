"""Outputs of the membership core: events about members, and the command to send a message."""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.wire.schema import Message


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """An event of one member."""

    peer: str


class Announced(MemberEvent):
    """Others reported the peer, or its new addresses: it must be contacted, and joins when it is met."""


class Joined(MemberEvent):
    """The peer is here: it was unknown, dead or left before."""


class Changed(MemberEvent):
    """A live member has new addresses, or a suspicion of it was cleared. Its edges stay open."""


class Suspected(MemberEvent):
    """The peer is suspected dead; it stays in the alive set until the suspicion times out."""


class Died(MemberEvent):
    """The peer left the alive set without Farewell: its flows must be revoked."""


class Left(MemberEvent):
    """The peer left the alive set with Farewell."""


class Reborn(MemberEvent):
    """A known peer restarted with a newer incarnation: edges with the previous one are void."""


@dataclass(frozen=True, slots=True)
class ClockSample:
    """A peer's swarm time as of half an `rtt_s` ago, read from the acknowledgement of a direct probe."""

    peer: str
    swarm_time: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class Send:
    """Command: send this message once, best effort; the core repeats what matters."""

    peer: str
    message: Message


Output = MemberEvent | ClockSample | Send
