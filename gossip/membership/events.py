"""What the membership core tells its shell: facts about members, and one command."""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.wire.schema import Message


@dataclass(frozen=True, slots=True)
class Joined:
    """The peer entered the alive set: unknown until now, or back from death or leave."""

    peer: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A live member's addresses are new, or a suspicion of it is void. Its edges stand."""

    peer: str


@dataclass(frozen=True, slots=True)
class Suspected:
    """The peer may be dead; it stays in the alive set while it has time to refute."""

    peer: str


@dataclass(frozen=True, slots=True)
class Died:
    """The peer left the alive set without a word: its flows are to be revoked."""

    peer: str


@dataclass(frozen=True, slots=True)
class Left:
    """The peer left the alive set in order."""

    peer: str


@dataclass(frozen=True, slots=True)
class Reborn:
    """A known peer runs in a newer incarnation: every edge with its older life is void."""

    peer: str


@dataclass(frozen=True, slots=True)
class ClockSample:
    """A peer's swarm time as of half an `rtt_s` ago, read from the acknowledgement of a direct probe."""

    peer: str
    swarm_time: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class Send:
    """Command: hand this message to the network, once; the core repeats what matters."""

    peer: str
    message: Message


MemberEvent = Joined | Changed | Suspected | Died | Left | Reborn
Output = MemberEvent | ClockSample | Send
