"""The role of a node that holds one stage of a crew."""

from dataclasses import dataclass
from functools import partial

from msgspec import structs

from starling.node.daemon.training.local_work import EngineWork, Role, RoleRequest
from starling.node.extras.crew.daemon.service import CrewService
from starling.node.extras.crew.daemon.stage_peers import CrewNeighbors, StagePeers
from starling.node.rpc import calls


@dataclass(frozen=True, slots=True)
class CrewWork:
    """The local work of a node with one stage of a crew's model: the engine does steps for the crew, and freezes when they are done."""

    crew: CrewService
    stage: EngineWork
    steps: int  # local steps of a round, >= 1

    async def train(self, grant: calls.Train) -> calls.Trained:
        """Do the steps in the round in which the crew is, which may be later than the one granted."""
        reached = await self.crew.steps(grant.round, grant.steps)
        return await self.stage.train(structs.replace(grant, round=reached))

    async def evaluate(self, round: int) -> calls.Reply | None:
        """Evaluate through all stages; None: the crew is about something else."""
        return await self.crew.evaluate(round, self.steps)


def stage(request: RoleRequest) -> Role:
    """Return the role of a stage: the crew is the member, and exchanges with the same stage of other crews."""
    manifest = request.context.manifest
    peers = StagePeers(request.membership, manifest.crew.stages, request.stage)
    service = CrewService(request.context, peers, request.opened, request.seconds)
    work = CrewWork(service, EngineWork(request.engine), manifest.pace.local_steps)
    return Role(work, peers, partial(CrewNeighbors, peers), service, peers.wanted, lambda: peers.words)
