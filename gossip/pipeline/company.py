"""The current members of a crew, and the moment in which its machine acts: shared by the parts of `starling.gossip.pipeline.crew`."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

from starling.gossip.pipeline.crew_commands import Command, Result, Send, Work
from starling.gossip.wire.schema import Crew as Frame
from starling.gossip.wire.schema import Ready

MOST_STRANGERS = 64

T = TypeVar("T")
Flow = Generator[Work | None, Result, T]
"""Yields work for the engine and is sent its result, or None to wait for whatever comes, until `Moment.deadline` at the latest."""


@dataclass(slots=True)
class Company:
    """The peers of a crew in the order of stages, and a name of it in which their incarnations are."""

    stage: int  # ours
    stages: int
    crew: int = -1  # its number
    name: bytes = b""
    peers: tuple[str, ...] = ()
    whole: bool = False  # all are there
    alone: bool = True  # there is no other crew
    _strange: dict[str, Ready] = field(default_factory=dict)  # messages by peer, about crews that are not known yet

    @property
    def others(self) -> tuple[int, ...]:
        """Return all stages but ours."""
        return tuple(stage for stage in range(self.stages) if stage != self.stage)

    def stage_of(self, peer: str) -> int | None:
        """Return the stage of a peer of the crew."""
        return self.peers.index(peer) if peer in self.peers else None

    def strange(self, peer: str, frame: Frame) -> None:
        """Store a peer's message about a crew that we do not know yet."""
        if isinstance(frame, Ready) and (peer in self._strange or len(self._strange) < MOST_STRANGERS):
            self._strange[peer] = frame

    def rename(self, crew: int, name: bytes, peers: tuple[str, ...]) -> list[tuple[int, Ready]]:
        """Set another crew; return the messages that its stages sent before we knew it, in order."""
        self.crew, self.name, self.peers, self.whole = crew, name, peers, True
        strange, self._strange = self._strange, {}
        return sorted(
            ((peers.index(peer), ready) for peer, ready in strange.items() if peer in peers and ready.crew == name),
            key=lambda each: each[0],
        )


@dataclass(slots=True)
class Throttle:
    """Counts of an event by stage, of which a node's owner is told the first, the tenth, the hundredth, …"""

    _times: dict[int, int] = field(default_factory=dict)

    def count(self, stage: int) -> int:
        """Count once more -> how often it was by now, if that is to be told, else 0."""
        times = self._times[stage] = self._times.get(stage, 0) + 1
        return times if times == 10 ** (len(str(times)) - 1) else 0


@dataclass(slots=True)
class Moment:
    """State of one call of the machine."""

    now: float = 0.0
    deadline: float = math.inf  # time at which `tick` is due
    commands: list[Command] = field(default_factory=list)
    phase: str = "idle"
    trouble: bool = False  # the current work cannot be finished: the crew must meet again

    def tell(self, company: Company, frame: Frame) -> None:
        """Send a frame to all other stages."""
        self.commands += [Send(company.peers[stage], frame) for stage in company.others]
