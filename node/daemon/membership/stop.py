"""Send this node's vote on stopping to members, and count theirs (`starling.gossip.membership.stop_votes`).

A vote is sent to all members after every evaluation, which repeats what was lost, and to each member that joins; a member that would stop
answers each that would not. Where `pace.stop_after` is 0 nothing is sent, and what comes is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import trio

from starling.gossip.membership.stop_votes import StopVotes
from starling.gossip.wire.schema import StopVote
from starling.node.daemon.context import NodeContext
from starling.node.daemon.membership.best_effort import BestEffort
from starling.node.daemon.membership.neighbors import Members
from starling.node.interfaces import TaskStatus
from starling.node.rpc.calls import Opened


class StopService:
    """Exchanges votes to end the training, and decides on them."""

    def __init__(self, context: NodeContext, members: Members, opened: Opened, electors: Callable[[], Collection[str]]) -> None:
        pace = context.manifest.pace
        self._me, self._members, self._electors = context.me, members, electors
        self._best_effort = BestEffort(context.network)
        self._round = opened.round
        self.votes = None
        if pace.stop_after:
            self.votes = StopVotes(
                pace.stop_after * pace.evaluate_every, pace.quorum == 1, opened.higher_is_better, opened.best, opened.best_round or 0
            )

    def evaluated(self, round: int, value: float) -> None:
        """Record our value after `round` rounds, and send our vote to all members."""
        if self.votes is not None:
            self._round = round
            self.votes.evaluated(round, value)
            for peer in self._members.members:
                if peer != self._me:
                    self._tell(peer)

    def welcome(self, peer: str) -> None:
        """Send our vote to a member that joined or restarted; it ignores that until it knows us, but then sends its own."""
        if self.votes is not None:
            self._tell(peer)

    def forget(self, peer: str) -> None:
        """Delete the vote of a member that is gone or restarted."""
        if self.votes is not None:
            self.votes.forget(peer)

    def _tell(self, peer: str) -> None:
        assert self.votes is not None
        self._best_effort.send_soon(peer, StopVote(self._round, self.votes.stalled))

    def receive(self, peer: str, vote: StopVote) -> None:
        """Process a member's vote; if it continues while we would stop, answer with ours, as it may have joined since."""
        if self.votes is not None:
            self.votes.voted(peer, vote.stop)
            if self.votes.stalled and not vote.stop:
                self._tell(peer)

    def agreed(self) -> bool:
        """Return whether enough members vote to stop, this node included."""
        # not those that are gone: their votes are, and as many identities as anybody likes may come, exchange thrice and go
        return self.votes is not None and self.votes.agreed(set(self._electors()).intersection(self._members.members))

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Send votes until cancelled."""
        await self._best_effort.serve(task_status)
