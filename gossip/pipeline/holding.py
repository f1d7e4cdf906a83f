"""Stages that come to meetings and are why no steps follow them, as far as this stage can know; pure.

A stage that says that it has no steps to do, or that it lacks its state, has answered, and the crew learns nothing as long as it says so.
So a stage has come to a meeting only when steps follow it. If none do, who waits goes on waiting for

    who has no steps to do              unless this stage has none itself, as all do in a sweep of averaging
    who lacks its state                 if this stage has given it, or tried to, since steps followed last: whoever gave it knows better
    who is to give this stage its own   until more of it comes than ever before

What a paused node says is true: it is no fault, the others go on without it. A third stage holds neither of the last two for the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starling.gossip.pipeline.meeting import Fetch, Has, Start
from starling.gossip.pipeline.owed import TURN_S


@dataclass(slots=True)
class Holding:
    """What stage `stage` of N knows of those on whose account no steps followed its last meeting.

    Attributes:
        why: what they do, by stage.
        due: local steps of the state in which all stages are at the next meeting, as the last one agreed; None: nobody knows.
        rests: the last meeting was complete, and somebody had no steps to do.
        coming_s: seconds in which pieces of this stage's state came, of which each takes an honest line `TURN_S` at most.
    """

    stage: int
    why: dict[int, str] = field(default_factory=dict)
    due: int | None = None
    coming_s: float = 0.0
    rests: bool = False
    _gave: bool = False  # to the stage behind
    _lacks: bool = False  # this stage its own
    _got: int = 0  # pieces of it, the most in a row so far
    _got_at: float = 0.0

    def clear(self) -> None:
        """Forget all: steps follow, or the stages are other peers'."""
        self.why, self.coming_s, self.rests, self._gave, self._lacks, self._got = {}, 0.0, False, False, False, 0

    def concluded(self, told: Sequence[Has], conclusion: Start | Fetch, now: float) -> frozenset[int]:
        """Note who is why no steps follow this conclusion from what all N stages told, in order -> those that cost steps by what they told.

        They are not in the state in which this one is, as agreed, or have no steps to do though this one has, and had some the last time.
        """
        own, due = told[self.stage], self.due
        costly = due is not None and own.step == due and own.left > 0
        self.due = conclusion.until if isinstance(conclusion, Start) and conclusion.steps else None
        self.rests = conclusion.rests
        if conclusion.steps:
            self.clear()
        elif conclusion.rests:
            rest = [stage for stage, has in enumerate(told) if has.left == 0]
            self.why = {} if self.stage in rest else dict.fromkeys(rest, "has had no steps to do")
        else:
            behind, before = (self.stage + 1) % len(told), (self.stage - 1) % len(told)
            self.why = {behind: "has lacked a state that this node has given it"} if self._gave and behind in conclusion.stages else {}
            self._lacks = self.stage in conclusion.stages
            if self._lacks:
                self.why[before], self._got_at = "has given this node no more of its state", now
        return frozenset(stage for stage, has in enumerate(told) if costly and (has.step != due or not has.left))

    def gave(self) -> None:
        """Note that the stage behind was given its state, or that this was tried."""
        self._gave = True

    def got(self, pieces: int, now: float) -> bool:
        """Note that so many pieces of this stage's state have come; return whether it lacks it and these are more than ever before."""
        since, self._got_at = now - self._got_at, now
        if not self._lacks or pieces <= self._got:
            return False
        self._got = pieces
        self.coming_s += min(since, TURN_S)
        return True
