"""Beacons at work: the founder publishes them, members pass them on, ask for those they lack and take the salts of ranks from them.

Only where members are ranked anew (`overlay.rerank_every`). The founder publishes the beacon of the next epoch when it enters one,
whatever others say of how far they are. Who hears a beacon for the first time passes it on, to all members or a few in large swarms.
Who enters an epoch without its beacon goes on with the salt that anybody can work out, says so once, and asks the founder and a random
member; whatever is missing is asked for again every `membership.sync_s`. As soon as it comes it holds, so that all who have it agree.

    a beacon that is not signed by the founder    a fault of the sender
    one that is known, too old or too far ahead   ignored
    more than a member may have us check          ignored

A dead founder costs foresight only: every exchange goes on, and those who disagree about a beacon refuse each other for an epoch at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from starling.gossip.exchange.attestation import Verify
from starling.gossip.membership.dissemination import fan_out
from starling.gossip.membership.sampler import Sampler
from starling.gossip.overlay.beacon import Beacons, signed
from starling.gossip.overlay.ranks import epoch_of
from starling.gossip.wire.schema import Beacon, BeaconQuery
from starling.node.daemon.membership.best_effort import BestEffort
from starling.node.interfaces import Reporter, TaskStatus
from starling.node.net.api import Network
from starling.robust.evidence import Ration

BURST, PER_S = 16.0, 2.0
"""Signatures of one member that are checked, and questions answered: at once, and in the long run."""
MAX_SENDERS = 4096


class BeaconService:
    """One node's part in salts that nobody knows far ahead.

    Args:
        network: to send.
        report: told when beacons fail to come, and when they come again.
        swarm: swarm id; also the salt of epoch 0.
        founder: peer id.
        sign: Ed25519 of this node, used only if it is the founder's.
        verify: checks a peer's signature.
        members: alive members, ourselves included.
        every: rounds of an epoch, >= 1.
        sync_s: seconds between questions for what is missing.
        seed: of whom we tell and ask.
    """

    def __init__(
        self, *, network: Network, report: Reporter, swarm: str, founder: str, sign: Callable[[bytes], bytes], verify: Verify,
        members: Callable[[], Sequence[str]], every: int, sync_s: float, seed: int,
    ) -> None:  # fmt: skip
        self._me = network.peer_id
        self._report = report
        self._swarm = swarm
        self._founder = founder
        self._sign = sign
        self._members = members
        self._every = every
        self._sync_s = sync_s
        self._sampler = Sampler(seed)
        self._beacons = Beacons(swarm, founder, verify)
        self._rations: dict[str, Ration] = {}
        self._epoch = 0
        self._entered = trio.Event()
        self._began = False
        self._missing = False
        self._best_effort = BestEffort(network)

    def salt(self, round: int) -> bytes:
        """The salt of the ranks in a round that is, or is about to be, under way here."""
        epoch = epoch_of(round, self._every)
        if epoch > self._epoch or not self._began:
            self._enter(epoch)
        return self._beacons.salt(self._swarm.encode(), epoch)

    # --- what is heard ------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Beacon | BeaconQuery) -> None:
        """A member tells a beacon or asks for some.

        Raises:
            RemoteProtocolError: beacon_forged.
        """
        if isinstance(message, Beacon) and not self._beacons.wants(message, self._epoch):
            return
        if len(self._rations) >= MAX_SENDERS and sender not in self._rations:
            del self._rations[next(iter(self._rations))]
        if not self._rations.setdefault(sender, Ration(BURST, PER_S)).take(1, trio.current_time()):
            return
        if isinstance(message, BeaconQuery):
            for beacon in self._beacons.since(message.epoch):
                self._best_effort.send_soon(sender, beacon)
        elif self._beacons.take(sender, message, self._epoch):
            self._spread(message, {sender, self._founder})
            self._look()

    # --- what is told -------------------------------------------------------------------------------------

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Send, and ask for what is missing, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._best_effort.serve)
            task_status.started()
            while True:
                with trio.move_on_after(self._sync_s) as waiting:
                    await self._entered.wait()
                self._entered = trio.Event()
                self._ask(1 if waiting.cancelled_caught else 0)

    def _enter(self, epoch: int) -> None:
        could_know = self._began and epoch == self._epoch + 1  # who has just come, or jumped here, was not told yet
        self._began, self._epoch = True, epoch
        if self._me == self._founder:
            self._publish()
        self._look()
        if could_know and not self._missing and epoch not in self._beacons:
            self._missing = True
            text = f"no beacon from the founder for round {epoch * self._every}: who meets whom can be foreseen until there is one"
            self._report.event("beacon_missing", text, level="warning", epoch=epoch)
        self._entered.set()

    def _look(self) -> None:
        if self._missing and self._epoch in self._beacons:
            self._missing = False
            self._report.event("beacon_back", "there are beacons from the founder again", epoch=self._epoch)

    def _publish(self) -> None:
        """As the founder: sign for the epoch that begins, if that was not done when the one before it did, and for the next."""
        for epoch in range(max(1, self._epoch), self._epoch + 2):
            if epoch not in self._beacons:
                beacon = signed(self._swarm, epoch, self._sign)
                self._beacons.take(self._me, beacon, self._epoch)
                self._spread(beacon, set())

    def _ask(self, ahead: int) -> None:
        """Ask for the first beacon that is missing, of our epoch and so many after it."""
        missing = [at for at in range(max(1, self._epoch), self._epoch + ahead + 1) if at not in self._beacons]
        if not missing or self._me == self._founder:
            return
        others = [peer for peer in self._members() if peer not in {self._me, self._founder}]
        asked = [self._founder] if self._founder in self._members() else []
        for peer in (*asked, *self._sampler.sample(others, 1)):
            self._best_effort.send_soon(peer, BeaconQuery(missing[0]))

    def _spread(self, beacon: Beacon, known_to: set[str]) -> None:
        others = [peer for peer in self._members() if peer != self._me and peer not in known_to]
        for peer in self._sampler.sample(others, fan_out(len(others) + 1)):
            self._best_effort.send_soon(peer, beacon)
