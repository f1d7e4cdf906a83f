"""Save the final model when the rounds are done, and again if more was committed since, or it could not be written."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starling.gossip.errors import EngineError
from starling.node.config.schema import PaceSection
from starling.node.daemon.exchange.pairwise import PairwiseExchange
from starling.node.daemon.exchange.pull_service import PulledExchange
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.rpc import calls


@dataclass(slots=True)
class LastModel:
    """Writes one node's final model to `export` beside the checkpoint; None: nowhere."""

    pace: PaceSection
    exchange: PairwiseExchange | PulledExchange
    house: Housekeeping
    export: Path | None
    _committed: int = 0
    """Number of committed exchanges at the last save."""

    async def save(self) -> None:
        """Write the current model; a failure is reported, and stays in `house.cannot_save`."""
        self._committed = self.exchange.stats.committed
        await self.house.save(self.export)

    async def save_again(self) -> None:
        """Write the model if that failed before, as disk space may have been freed, or a late acknowledgement has committed an exchange
        since.
        """
        committed = self.exchange.stats.committed
        if committed > self._committed and self.pace.kind == "steps":
            with suppress(EngineError):
                await self.house.engine.call(calls.Mix(self.house.progress.round - 1))
        if committed > self._committed or self.house.cannot_save:
            await self.save()
