"""Carry out the detector's outputs: send messages, feed the clock, and report members to the network and other services."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.membership.events import Announced, Changed, ClockSample, Died, Joined, Left, MemberEvent, Output, Reborn, Send
from starling.gossip.membership.member_list import MemberList
from starling.gossip.membership.roster import Roster
from starling.node.daemon.membership.best_effort import BestEffort
from starling.node.net.api import Network


class Outputs:
    """Carries out outputs of one node's detector; `changed` is called with every change of a member.

    `heard` returns when the last frame of a member came.
    """

    def __init__(
        self,
        network: Network,
        clock: SwarmClock,
        member_list: MemberList,
        best_effort: BestEffort,
        changed: Callable[[MemberEvent], object],
        heard: Callable[[str], float],
    ) -> None:
        self.roster = Roster(network.peer_id, heard=heard)
        self._network, self._clock, self._member_list = network, clock, member_list
        self._best_effort, self._changed = best_effort, changed

    def carry_out(self, outputs: Sequence[Output]) -> None:
        """Carry out outputs in order, without waiting: a slow peer must not delay the others."""
        for output in outputs:
            match output:
                case Send(peer=peer, message=message):
                    self._best_effort.send_soon(peer, message)
                case ClockSample(peer=peer, swarm_time=theirs, rtt_s=rtt_s):
                    self._clock.observe(peer, theirs, rtt_s, trio.current_time())
                case _:
                    self._publish(output)

    async def send_all(self, outputs: Sequence[Output]) -> None:
        """Send messages and wait until they are sent."""
        async with trio.open_nursery() as nursery:
            for output in outputs:
                if isinstance(output, Send):
                    nursery.start_soon(self._best_effort.send, output.peer, output.message)

    def _publish(self, event: MemberEvent) -> None:
        match event:
            case Announced(peer=peer) | Joined(peer=peer) | Changed(peer=peer) | Reborn(peer=peer):
                member = self._member_list.members.get(peer)
                if member is not None:
                    self._network.learn(peer, member.record.addresses)
            case Died(peer=peer) | Left(peer=peer):
                self._clock.forget(peer)
        self.roster.observe(event, trio.current_time())
        self._changed(event)
