"""Bans and trust on disk: decisions about peers for the next run. One JSON list, times in unix seconds."""

import math
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from starling.robust.reputation import Decision

MAX_DECISIONS = 4096


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    peer: Annotated[str, Meta(min_length=1, max_length=128)]
    kind: Literal["ban", "trust"]
    until: float | None = None
    bans: Annotated[int, Meta(ge=0, le=2**32)] = 0
    why: Annotated[str, Meta(max_length=300)] = ""
    invitation: Annotated[str, Meta(max_length=128)] = ""


def encode(decisions: Iterable[Decision]) -> str:
    """Return the file's text; an end that never comes is left out."""
    stored = [
        _Stored(it.peer, it.kind, it.until if math.isfinite(it.until) else None, it.bans, it.why[:300], it.invitation) for it in decisions
    ]
    return "[\n" + ",\n".join(f" {msgspec.json.encode(it).decode()}" for it in stored) + "\n]\n" if stored else "[]\n"


def decode(text: str) -> tuple[Decision, ...]:
    """Return the decisions in a file's text. Raises ValueError: it is not a file of decisions."""
    try:
        stored = msgspec.json.decode(text, type=Annotated[list[_Stored], Meta(max_length=MAX_DECISIONS)])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return tuple(Decision(it.peer, it.kind, math.inf if it.until is None else it.until, it.bans, it.why, it.invitation) for it in stored)
