"""What the stages of a crew said at a meeting, signed, so that one that equivocates is detected; pure.

Stages that heard different things conclude different things, and wait for each other in vain, though neither is at fault. So each signs
what it says, once for a meeting, whose number it never says again, and every later report names, by a digest, what its sender has heard at
the last one. Who has heard other things sends that stage all of them. What it has not heard it has heard now; two statements of one stage
for one meeting prove that it equivocates.

Shapes: N stages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgpack
from msgspec import structs

from starling.gossip.limits import keep
from starling.gossip.wire.schema import Minutes, Ready, Said

KEPT = 2  # meetings: who calls the next one too early heard other things at the one before
_DOMAIN = b"starling/crew/meeting/1\0"
_DIGEST_BYTES = 16


def body(stage: int, ready: Ready) -> bytes:
    """Return what a stage signs of its report, with the word of who called it."""
    states = [list(ready.points), list(ready.copies), ready.safe, ready.batches]
    call = next((list(structs.astuple(word)) for word in ready.waits if word.turn == ready.turn), None)  # else others could change it
    facts = [ready.turn, ready.round, ready.step, ready.left, ready.evaluate, *states, call]
    packed: bytes = msgpack.packb([ready.crew, stage, *facts], use_bin_type=True)
    return _DOMAIN + packed


def differ(stage: int, one: Ready, other: Ready) -> bool:
    """Return whether two reports of a stage for one meeting say different things."""
    return body(stage, one) != body(stage, other)


def minutes(crew: bytes, turn: int, heard: Sequence[Ready | None]) -> Minutes:
    """Return the message that passes on what was heard at a meeting, in the order of stages, with the word of who called it."""
    plain = (
        (stage, structs.replace(it, waits=tuple(each for each in it.waits if each.turn == turn)[:1], freed=(), answers=False))
        for stage, it in enumerate(heard)
        if it is not None
    )
    return Minutes(crew, turn, tuple(Said(stage, ready) for stage, ready in plain))


@dataclass(slots=True)
class Concluded:
    """The last meetings at which all N stages were heard.

    Attributes:
        turn: the last one's, 0 before there was one.
        heard: digest of what was said there, 16 bytes, b"" before.
    """

    turn: int = 0
    heard: bytes = b""
    _told: dict[int, Sequence[Ready]] = field(default_factory=dict)  # by turn

    def add(self, turn: int, told: Sequence[Ready]) -> None:
        """Note what all stages said at a meeting, in order."""
        keep(self._told, turn, told, KEPT)
        bodies = b"".join(body(stage, ready) for stage, ready in enumerate(told))
        self.turn, self.heard = turn, hashlib.blake2b(bodies, digest_size=_DIGEST_BYTES).digest()

    def at(self, turn: int) -> Sequence[Ready]:
        """Return what all stages said at a meeting, nothing if it is not known."""
        return self._told.get(turn, ())

    def differs(self, ready: Ready) -> bool:
        """Return whether the sender of a report has heard other things than this stage at the last meeting that both concluded last."""
        return ready.heard_at == self.turn > 0 and ready.heard != self.heard
