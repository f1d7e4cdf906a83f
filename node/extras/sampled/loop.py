"""Sampled rounds: a node sleeps until it is its turn; then it takes the newest model, or averages a sample's, does local steps or none, and
publishes.
"""

from dataclasses import dataclass
from functools import partial

from starling.gossip.exchange.sampled import Due
from starling.node.config.schema import PaceSection
from starling.node.daemon.training.catch_up import last_round
from starling.node.daemon.training.grants import Grants
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.extras.sampled.exchange import SampledExchange
from starling.node.rpc import calls


@dataclass(frozen=True, slots=True)
class SampledLoop:
    """The turns of one node, for training and for averaging. Satisfies `RoundLoop`."""

    pace: PaceSection
    exchange: SampledExchange
    grants: Grants
    house: Housekeeping

    async def begin(self, start: int) -> None:
        """Do nothing: turns are counted without a clock."""

    def pause(self, paused: bool) -> None:
        """Stop or resume taking turns; a turn already taken is done without local steps."""
        self.grants.pause(paused)
        self.grants.pause_s, self.exchange.resting = 0.0, paused

    async def run(self, start: int) -> None:
        """Do turns, from round `start` on, until this node has the last model."""
        begun = last = False
        while not begun:
            async with self.house.surviving():
                await self.exchange.begin(start)
                begun = True
        while not last:
            due = await self.exchange.due()
            async with self.house.surviving(partial(self.exchange.give_up, due)):
                last = await self._turn(due)

    async def _turn(self, due: Due) -> bool:
        """Do a turn; return whether it was the last one."""
        exchange, house = self.exchange, self.house
        sampling, progress, evaluation = exchange.sampling, house.progress, house.evaluation
        current = sampling.round(due.turn)
        progress.current = int(min(current, last_round(self.pace) - 1))
        if due.sources and not await exchange.take(due):
            return False
        if due.last:
            self._finish(due)
            return True
        trains = sampling.trains(due.turn)
        done = current if trains else current + 1  # rounds that have been averaged
        progress.round = done
        if evaluation.due(done) and trains and not sampling.aggregators:
            await evaluation.evaluate()
        grant = self.grants.grant(current) if trains and not due.again else calls.Train(current, 0)
        house.trained(await self.grants.train(grant), done - 1)
        await exchange.publish(due.turn)
        if evaluation.due(done) and not trains:
            await evaluation.evaluate()
        await house.save_when_due()
        return False

    def _finish(self, due: Due) -> None:
        progress = self.house.progress
        progress.round = self.pace.rounds
        if not due.sources:
            text = "nobody had the model of the last round; this node keeps the newest that it had"
            self.house.context.report.event("last_model_missed", text, level="warning", round=progress.round)
        self.exchange.finish()
