"""Who does local steps and evaluations: this node's engine alone, or together with those of the other stages of its crew."""

from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from starling.node.daemon.crew.service import CrewService
from starling.node.interfaces import EngineHandle
from starling.node.rpc import calls


class LocalWork(Protocol):
    """What a node computes without exchanges. Its methods raise EngineError: the engine was lost."""

    async def train(self, grant: calls.Train) -> calls.Trained:
        """Do the local steps of a round, and freeze. -> what was done; its round is a later one if others are there already"""
        ...

    async def evaluate(self, round: int) -> calls.Reply | None:
        """Evaluate the model after `round` rounds on held-out data. -> Evaluated or Refused; None: this time there is no value"""
        ...


@dataclass(frozen=True, slots=True)
class EngineWork:
    """A node that holds a whole model."""

    engine: EngineHandle

    async def train(self, grant: calls.Train) -> calls.Trained:
        """Have the engine do the steps."""
        trained = await self.engine.call(grant)
        assert isinstance(trained, calls.Trained), trained
        return trained

    async def evaluate(self, round: int) -> calls.Reply | None:
        """Have the engine evaluate."""
        return await self.engine.call(calls.Evaluate(round))


@dataclass(frozen=True, slots=True)
class CrewWork:
    """A node that holds one stage of a crew's model: the engine does steps on the crew's behalf, and freezes when they are done."""

    crew: CrewService
    stage: EngineWork
    steps: int  # of a round, >= 1

    async def train(self, grant: calls.Train) -> calls.Trained:
        """Do the steps in the round in which the crew is, which may be later than the one granted."""
        reached = await self.crew.steps(grant.round, grant.steps)
        return await self.stage.train(structs.replace(grant, round=reached))

    async def evaluate(self, round: int) -> calls.Reply | None:
        """Evaluate through all stages; None: the crew is about something else."""
        return await self.crew.evaluate(round, self.steps)
