"""Assign local steps and evaluations: to this node's engine, or to several nodes' (`starling.node.catalogues.WORK`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from starling.node.catalogues import WORK
from starling.node.daemon.context import NodeContext, SecondNodes
from starling.node.daemon.membership.neighbors import Members, NamedNeighbors, OverlayNeighbors
from starling.node.daemon.membership.service import Membership
from starling.node.interfaces import EngineHandle, TaskStatus
from starling.node.rpc import calls

NO_CREW_BYTES = 1 << 10  # most bytes of a frame on a lane that is not used here


class LocalWork(Protocol):
    """Local steps and evaluations of a node. Its methods raise EngineError: the engine was lost."""

    async def train(self, grant: calls.Train) -> calls.Trained:
        """Do the local steps of a round, and freeze the vector -> what was done; its round is a later one if others are there already."""
        ...

    async def evaluate(self, round: int) -> calls.Reply | None:
        """Evaluate the model after `round` rounds on held-out data -> Evaluated or Refused; None: no value this time."""
        ...


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Work of a node that holds a whole model."""

    engine: EngineHandle

    async def train(self, grant: calls.Train) -> calls.Trained:
        """Have the engine do the granted steps."""
        trained = await self.engine.call(grant)
        assert isinstance(trained, calls.Trained), trained
        return trained

    async def evaluate(self, round: int) -> calls.Reply | None:
        """Have the engine evaluate the model."""
        return await self.engine.call(calls.Evaluate(round))


class Service(Protocol):
    """A task that runs as long as the node does."""

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """The arguments for making a role. `stage`: of a crew; -1: there are none."""

    context: NodeContext
    engine: EngineHandle
    membership: Membership
    opened: calls.Opened
    stage: int
    seconds: SecondNodes | None


@dataclass(frozen=True, slots=True)
class Role:
    """A node's role in its swarm: who does its local steps, and which members it exchanges with.

    Args:
        work: local steps and evaluations.
        members: the swarm as exchanges and rounds see it.
        named: turns the neighbors that the overlay names into peers.
        service: what is done all the time, if anything.
        seats: the stage that a newcomer should take; None: there are no stages.
        seat: this node's, for people; "": it has none.
    """

    work: LocalWork
    members: Members
    named: Callable[[OverlayNeighbors], NamedNeighbors] = lambda neighbors: neighbors
    service: Service | None = None
    seats: Callable[[str], int] | None = None
    seat: Callable[[], str] = lambda: ""


def role_of(request: RoleRequest) -> Role:
    """Return the role of a node."""
    return WORK["stage" if request.stage >= 0 else "whole"](request)


def whole(request: RoleRequest) -> Role:
    """Return the role of a node that holds a whole model: it is a member by itself, and reads no frames of crews."""
    request.context.network.expect("crew", NO_CREW_BYTES)
    return Role(EngineWork(request.engine), request.membership)
