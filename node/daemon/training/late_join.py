"""Choose the round at which a node starts, and fetch members' models if it starts late or was left behind."""

from dataclasses import dataclass
from typing import Protocol

import trio

from starling.node.daemon.membership.sources import Sources
from starling.node.daemon.state.model_sync import ModelSync
from starling.node.daemon.state.outer_sync import OuterSync
from starling.node.daemon.training.catch_up import CatchUp
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.rpc import calls

CONTRADICTED_S = 2.0  # seconds; first pause of a joiner that was offered contradictory models, doubled each time
LONGEST_CONTRADICTED_S = 60.0  # upper bound of it


class Joining(Protocol):
    """How a node joins a swarm that has already begun."""

    async def start(self, opened: calls.Opened) -> int:
        """Return the round at which to start, with a model of that round."""
        ...


@dataclass(frozen=True, slots=True)
class PeerModels:
    """Fetches models on which members agree."""

    sources: Sources
    sync: ModelSync
    outer: OuterSync

    async def fetch(self, newer_than: int, live: bool) -> int | None:
        """Install the model on which members agree, if it is past round `newer_than` -> its round.

        `live` as in `ModelSync.fetch`. Raises EngineError: the engine was lost.
        """
        asked = self.sources.begin()
        return await self.sync.fetch(asked.now(), newer_than, live=live, more=asked.further)


@dataclass(frozen=True, slots=True)
class LateJoin:
    """Starts a node that members have left behind with a model of theirs."""

    catch_up: CatchUp
    models: PeerModels
    house: Housekeeping

    async def start(self, opened: calls.Opened) -> int:
        """Return the checkpoint's round, or that of a model fetched from members who are further."""
        start, pause, tried = opened.round, CONTRADICTED_S, False
        ahead = opened.round + self.catch_up.max_lag_rounds * opened.resumed
        while not tried:
            async with self.house.surviving():
                start = await self.catch_up.replace(opened.round, ahead)
                tried = opened.resumed or not self.models.sync.contradicted
                if not tried:
                    await trio.sleep(pause)  # more members may come, or Byzantine ones be banned
                    pause = min(2.0 * pause, LONGEST_CONTRADICTED_S)
        self.house.progress.joined_late = start > opened.round and not opened.resumed
        return start
