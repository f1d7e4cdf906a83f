"""Requests of a crew's machine, and the engine's answers (`starling.gossip.pipeline.crew`).

The stage's engine does one `Work` at a time and answers with a `Result`. All other commands have no answer, except that `PushState` reports
its end by `Crew.pushed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from starling.gossip.pipeline.schedule import Way
from starling.gossip.pipeline.stage import Part
from starling.gossip.wire.schema import Crew as Frame

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class UseState:
    """Use states of this stage of crew number `crew`. -> States

    look: do nothing; keep: keep the present one, from now on that after `step` local steps; back: go back to a kept one; take: keep `state`
    and go there; carry: states of the crew that this stage was in before are from now on those of `crew`. All but carry drop states of
    another crew.
    """

    action: Literal["look", "keep", "back", "take", "carry"]
    crew: int
    step: int = 0
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class DoTask:
    """Compute a forward or a backward of a micro-batch. -> Computed, or Unfit. `evaluate`: a forward of held-out data."""

    way: Way
    crew: int
    step: int
    micro: int
    payload: bytes
    labels: bytes
    evaluate: bool


@dataclass(frozen=True, slots=True)
class Summarize:
    """Compute this stage's part after all tasks of a step. -> Part"""


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """Apply a step of `round`, with which `steps` are done, its gradient times `scale`. Not `fine`: it counts as undone. -> None"""

    round: int
    scale: float
    loss: float
    fine: bool
    steps: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Discard the results of a step or an evaluation. -> None"""


@dataclass(frozen=True, slots=True)
class GiveState:
    """Send the kept `state` of another stage back to it; the machine waits for the end. -> None"""

    peer: str
    stage: int
    step: int
    state: bytes


Work = UseState | DoTask | Summarize | ApplyStep | Abandon | GiveState


@dataclass(frozen=True, slots=True)
class States:
    """Local steps of the state that the stage is in, and of those kept, the oldest first."""

    step: int
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    """A task's result for the neighboring stage; empty if there is none.

    over: what it was given was so many times as long as usual; 0: it was not too long.
    """

    payload: bytes = b""
    labels: bytes = b""
    over: float = 0.0


@dataclass(frozen=True, slots=True)
class Unfit:
    """The neighboring stage's message cannot be used."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """The engine has no use for a state, or none of that number."""

    reason: str


Result = States | Computed | Unfit | Unusable | Part | None


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame to a peer, in order behind those before it."""

    peer: str
    frame: Frame


@dataclass(frozen=True, slots=True)
class PushState:
    """Send the state of this stage after `step` local steps to the peer that stores it, in the background; then call `Crew.pushed`."""

    peer: str
    stage: int
    step: int


@dataclass(frozen=True, slots=True)
class Note:
    """Report to the owner."""

    name: str
    text: str
    level: Level = "info"
    fields: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Blame:
    """A peer broke a rule."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class FreeStage:
    """A peer has been silent for too long: join a crew without it."""

    peer: str


@dataclass(frozen=True, slots=True)
class Unfollow:
    """A peer has freed our seat: do not go to the crew that it goes to."""

    peer: str


@dataclass(frozen=True, slots=True)
class Trained:
    """The requested work is done: the local steps of `round`, a later one than requested if the others were further."""

    round: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation is done, with `last` the last stage's part; None: the crew is busy."""

    last: Part | None


Outcome = Trained | Evaluated
Command = Work | Send | PushState | Note | Blame | FreeStage | Unfollow | Outcome
