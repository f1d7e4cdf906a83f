"""Results of a plan, machine by machine."""

from __future__ import annotations

import msgspec


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that trains the whole model, as every ordinary node does."""

    name: str
    needed_bytes: int
    memory_bytes: int
    step_s: float | None
    """Of one local step, all its micro-batches; null: its speed is not known."""
    exchange_s: float | None
    """In which its line sends an exchange; null: its rate is not known."""
    exchange_steps: float | None
    """Local steps meanwhile: the age of an answer."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a model on one machine of a crew."""

    name: str
    first: int
    end: int
    """Blocks `first` to `end`, that one excluded."""
    held: int
    """Micro-batches of which it keeps activations."""
    needed_bytes: int
    memory_bytes: int


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that hold consecutive parts of one model."""

    stages: tuple[Stage, ...]
    step_s: float
    decides: str
    """The largest part of the step: "computing" or "lines"."""
    step_s_of_twice_the_rates: float
    warm_up: int
    """Forwards ahead of the textbook's, for each stage that follows; `crew.warm_up` of a manifest."""


class Unused(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that takes no part."""

    name: str
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """A plan; what `starling plan --json` prints."""

    parameters: int
    bytes_per_parameter: float
    needed_bytes: int
    """Of one machine that trains the whole model."""
    members: tuple[Member, ...]
    crews: tuple[Crew, ...]
    unused: tuple[Unused, ...]
    cures: tuple[str, ...]
    """Keys any one of which would let one machine more train the whole model, the cheapest first; none where all do."""
