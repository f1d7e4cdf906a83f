"""Who keeps a stage waiting without an excuse: stages that wait say so, signed; pure, signing and verification are passed in.

What a stage needs in a step comes in one order: its tasks, then the parts of stages 0, 1, …. So one number, of those that it has, names the
one thing it waits for and the one stage that this must come from. A stage that waits tells all others that number once a second, signed,
and passes on the numbers that it was told: the largest of a stage is what counts, as the number only rises.

    a stage is excused        from a result that comes later in its order than what it waits for, if that is another stage's
    that stage                knows whether it has sent it; if it has, sends it again whenever it is asked, and that does not help,
                              whoever asks keeps it waiting

A stage that sends nothing may name any stage for what it waits for, but one only: who is told a larger number knows it for an excuse no
longer, and the one that it names knows better. Two stages told different things learn so from each other, as nobody can forge a number.

A call to a meeting is the same statement for its number, with nothing done in its steps: nobody can call in another's name.

Shapes: N stages, m micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgpack
from msgspec import structs

from starling.gossip.pipeline.company import Company
from starling.gossip.pipeline.stage import Step
from starling.gossip.wire.schema import Waits

FRESH_S = 3.0  # who waits says so once a second
_DOMAIN = b"starling/crew/1\0"


@dataclass(frozen=True, slots=True)
class Keys:
    """A node's signature, and verification of others': `verify(peer, signature, message)`."""

    sign: Callable[[bytes], bytes]
    verify: Callable[[str, bytes, bytes], bool]


@dataclass(slots=True)
class Waiting:
    """What each stage of a crew has said that it waits for."""

    company: Company
    keys: Keys
    _newest: dict[int, Waits] = field(default_factory=dict)  # by stage
    _said_at: dict[int, float] = field(default_factory=dict)  # stage -> when it last said itself that it waits

    def reset(self) -> None:
        """Forget all: the crew is another one."""
        self._newest.clear()
        self._said_at.clear()

    def say(self, turn: int, step: int, done: int) -> tuple[Waits, ...]:
        """Return our statement, and those of others in this meeting's steps."""
        known = (waits for _, waits in sorted(self._newest.items()) if waits.turn == turn)
        return self._signed(turn, step, done), *known

    def call(self, turn: int, step: int) -> Waits:
        """Return our signed word that we call a meeting."""
        return self._signed(turn, step, 0)

    def called(self, turn: int, said: Iterable[Waits]) -> Waits:
        """Return the word of who called a meeting, among what its message says. Raises ValueError: no_such_stage, call_unsigned."""
        word = next((waits for waits in said if waits.turn == turn), None)
        if word is None:
            raise ValueError("call_unsigned")
        if word.stage >= self.company.stages:
            raise ValueError("no_such_stage")
        if not self.keys.verify(self.company.peers[word.stage], word.signature, self._body(word)):
            raise ValueError("call_unsigned")
        return word

    def _signed(self, turn: int, step: int, done: int) -> Waits:
        own = Waits(self.company.stage, turn, step, done)
        return structs.replace(own, signature=self.keys.sign(self._body(own)))

    def learn(self, said: Iterable[Waits]) -> None:
        """Store statements that are new here. Raises ValueError: no_such_stage, waits_forged."""
        for waits in said:
            if waits.stage >= self.company.stages:
                raise ValueError("no_such_stage")
            known = self._newest.get(waits.stage)
            if waits.stage == self.company.stage or (known is not None and _place(waits) <= _place(known)):
                continue
            if not self.keys.verify(self.company.peers[waits.stage], waits.signature, self._body(waits)):
                raise ValueError("waits_forged")
            self._newest[waits.stage] = waits

    def without_excuse(self, core: Step, turn: int, step: int) -> tuple[int, ...]:
        """Return the stages that keep us waiting in a step of ours and have no excuse, or claim to wait for what we have sent."""
        return tuple(stage for stage in self.company.others if self._owes(core, stage, turn, step))

    def _owes(self, core: Step, stage: int, turn: int, step: int) -> bool:
        needed, said = core.needs(stage), self._newest.get(stage)
        if said is None or said.turn != turn:
            return needed is not None
        behind = said.step == step - 1 and said.done >= 2 * core.micro_batches  # else it has done that step since
        now = said.step == step and (needed is None or said.done <= needed)
        source = waited_for(stage, said.done, core) if behind or now else None
        if source == self.company.stage:
            return behind or core.gave(stage, said.done)
        return source is None and needed is not None

    def says(self, stage: int, now: float) -> None:
        """Note that a stage says itself, now, that it waits."""
        self._said_at[stage] = now

    def finishes(self, stage: int, step: int, micro_batches: int, now: float) -> bool:
        """Return whether a stage still waits, as it says, for a third one's part of the step that ended here at `step`."""
        said = self._newest.get(stage)
        if said is None or said.step != step - 1 or now > self._said_at.get(stage, -math.inf) + FRESH_S:
            return False
        return 0 <= said.done - 2 * micro_batches < self.company.stages and said.done - 2 * micro_batches not in {stage, self.company.stage}

    def _body(self, waits: Waits) -> bytes:
        packed: bytes = msgpack.packb([self.company.name, waits.stage, waits.turn, waits.step, waits.done], use_bin_type=True)
        return _DOMAIN + packed


def waited_for(stage: int, done: int, core: Step) -> int | None:
    """Return the stage from which must come what a stage with so much of a step lacks; None: there is no such one."""
    m = core.micro_batches
    if done < 2 * m:
        way, _ = core.task_of(stage, done)
        source = stage - 1 if way == "F" else stage + 1
    else:
        source = done - 2 * m
    return source if 0 <= source < core.stages and source != stage else None


def _place(waits: Waits) -> tuple[int, int, int]:
    return waits.turn, waits.step, waits.done
