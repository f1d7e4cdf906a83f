"""Seats that a crew frees: of stages that owe too much, by one's own count or others' word, and of those that equivocated."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from msgspec import structs

from starling.gossip.pipeline.company import Company, Moment
from starling.gossip.pipeline.crew_commands import Blame, FreeStage, Note, Send, Unfollow
from starling.gossip.pipeline.crew_states import StageStates
from starling.gossip.pipeline.owed import CALLS, TURNS, Owed
from starling.gossip.pipeline.roll import Roll
from starling.gossip.wire.schema import Ready

VOICES = 2  # number of stages that must free a seat before its holder's score is charged: one of them may be deaf, or lie


@dataclass(slots=True)
class FreedSeats:
    """The seats that this stage and others have freed."""

    company: Company
    owed: Owed
    moment: Moment
    states: StageStates
    roll: Roll
    peers: set[str] = field(default_factory=set)  # of this crew, whose seats are freed
    _named: dict[int, set[int]] = field(default_factory=dict)  # stage -> others that free its seat
    _charged: set[int] = field(default_factory=set)  # or spared
    _followed: set[str] = field(default_factory=set)  # peers on whose word alone a seat was freed

    def renamed(self) -> None:
        """The crew is another one."""
        self._named.clear()
        self._charged.clear()

    def forget(self) -> None:
        """Forget who was freed: the stages are other peers', or they sit together again."""
        self.renamed()
        self.peers.clear()

    def equivocated(self, stage: int) -> bool:
        """Blame a stage for two reports of one meeting, free its seat and forgive the others, once -> whether it is new."""
        if stage in self.owed.proven:
            return False
        self.owed.forgive()
        self.owed.proven.add(stage)
        self.moment.commands.append(Blame(self.company.peers[stage], "crew_equivocation"))
        self._charged.add(stage)
        self.free((stage,))
        return True

    def named(self, stage: int, ready: Ready) -> None:
        """Note whose seats a stage frees; if ours, do not go where it goes. Raises ValueError: no_such_stage."""
        if any(other >= self.company.stages or other == stage for other in ready.freed):
            raise ValueError("no_such_stage")
        peer = self.company.peers[stage]
        if self.company.stage in ready.freed:
            self.moment.commands.append(Unfollow(peer))
        for other in set(ready.freed) - {self.company.stage}:
            self._named.setdefault(other, set()).add(stage)
        self._charge()

    def follow(self, left: Collection[str]) -> None:
        """Continue with those who have `left`: free the stages that they free, if we have counted a turn too, or once on one report.

        Of two that free each other all follow the one of the lower stage, so that the others stay together.
        """
        peers, owed = self.company.peers, self.owed.arrears
        unheard = self._followed | self.peers  # whose own seat was freed here has no voice, wherever it is now
        for stage, named in sorted(self._named.items()):
            voices = {voice for voice in named if peers[voice] in left and peers[voice] not in unheard}
            if peers[stage] in left:
                voices = {voice for voice in voices if voice < stage and stage in self._named.get(voice, ())}
            if stage not in owed and peers[stage] not in self.peers and voices:
                self._followed |= {peers[voice] for voice in voices}
                self.free((stage,))
        self.free(stage for stage in owed if peers[stage] not in left)

    def free(self, stages: Iterable[int]) -> None:
        """Free the seats of stages that are in arrears."""
        for stage in stages:
            peer = self.company.peers[stage]
            if peer in self.peers:
                continue
            self.peers.add(peer)
            seen, text = stage in self.owed.arrears, f"stage {stage} {self._why(stage)}; the other stages go on without it"
            fields = {"stage": stage, "peer": peer}
            self.moment.commands += [Note("crew_mute", text, "warning", fields), FreeStage(peer)]
            if seen:
                self._named.setdefault(stage, set()).add(self.company.stage)
            if self.owed.put_off.turns.get(stage, 0) >= TURNS:
                self.spare(stage)  # its owner may have a reason
            self.tell()
        self._charge()

    def spare(self, stage: int) -> None:
        """Charge a stage for nothing but proofs from now on: it has put off meetings, or may have been taken for dead by mistake."""
        self._charged.add(stage)

    def _why(self, stage: int) -> str:
        """Describe why a stage's seat is freed."""
        owed = self.owed
        if stage in owed.proven:
            return "told stages different things at one meeting"
        if stage not in owed.arrears:
            return "has sent nothing of use, as a stage says that left it"
        if owed.costs.count(stage) >= CALLS * TURNS:
            return f"has interrupted its crew or sent it back {owed.costs.count(stage)} times in few rounds"
        return f"has sent nothing of use in {owed.count(stage)} turns in which it owed something"

    def tell(self) -> None:
        """Name the stages whose seats we have freed, as long as the crew is not whole: a frame may be lost.

        Those that another stage named are only told themselves, so that they do not come after us.
        """
        company, word = self.company, self.roll.alive(self.states.step)
        seen = {stage for stage, voices in self._named.items() if company.stage in voices}
        for stage, peer in enumerate(company.peers):
            freed = seen | {stage} if peer in self.peers else seen
            if stage != company.stage and freed:
                self.moment.commands.append(Send(peer, structs.replace(word, freed=tuple(sorted(freed)))))

    def _charge(self) -> None:
        """Blame those of whose arrears enough stages say, we among them."""
        for stage, voices in sorted(self._named.items()):
            if len(voices) >= VOICES and self.company.stage in voices and stage not in self._charged:
                self._charged.add(stage)
                self.moment.commands.append(Blame(self.company.peers[stage], "crew_mute"))
