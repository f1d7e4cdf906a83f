"""The exchange service: frames of the exchange lane to edges, edges to the engine, and rounds or slots over all of them.

Theory of operation. One loop takes frames in and gives each to its edge's machine; the machine's commands go to that edge's runner, its
notices to the pace (`Rounds` or `Slots`), which says who is answered now. A round or a visit is a wait: it begins what it may begin,
repeats what is not answered, gives up at the adaptive deadline, and is told of progress by one event that every notice sets.

    late, early or foreign wishes      Busy, by the pace's table
    a frame of no member               ignored, a fault
    a broken rule                      a fault, and nothing has changed
    a peer that cannot be reached      its link is a timeout at once

A round's end waits for the engine to have done what edges asked of it, then mixes. What a peer proves later counts in a later round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

import trio

from starling.gossip.errors import EngineError, LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange.commands import Asked, Ended, Outcome, Pending, Poked
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.rounds import Rounds
from starling.gossip.exchange.slots import Slots
from starling.gossip.exchange.timeouts import TRIES, Deadline, Waits
from starling.gossip.exchange.verdicts import Admission, Now, Refuse, Verdict, Wish
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Busy, Pulling, Request
from starling.node.config.schema import Manifest
from starling.node.daemon.exchange.api import RoundOutcome
from starling.node.daemon.exchange.edge_runner import (
    Budget,
    Clipped,
    EdgeRunner,
    Leaned,
    Notice,
    Settled,
    Surroundings,
    Unreachable,
)
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.lane import Reception
from starling.node.interfaces import EngineHandle, Reporter, TaskStatus
from starling.node.net.api import Network
from starling.node.rpc import calls
from starling.node.status.snapshot import Exchanges

MAX_ATTEMPTS = 4
"""Transactions begun on one link in one round."""
MAX_JUMP = 8
"""Rounds forward on the word of a few peers."""
MAX_LEAD = 16
"""Rounds: nodes with no link for a while run ahead by several without a fault; wishes from further are told off."""
TRY_AGAIN = frozenset({"reset", "superseded", "closing", "early"})
"""Ends of a transaction after which its link is still open."""


class Exchange:
    """All edges of one node.

    Args:
        network, engine, report: the node's.
        manifest: pace and mixing weight.
        swarm: swarm id.
        me: own peer id.
        fresh_inc: a random number in [0, 2**60] for a new life of an edge.
        may: whether a peer is an alive member.
        admits: whether a peer's frame is to be read; raises RemoteProtocolError for strangers.
        budget: bytes an exchange may cost.
        directions: steps pace: (give, take) of a round's links, where they are not the same both ways.
        noted: told how the exchanges of a round, or a visit, ended, by peer, and with whom they were clipped.
        transactions: told of every one, for a person to look at.
    """

    def __init__(
        self, *, network: Network, engine: EngineHandle, report: Reporter, manifest: Manifest, swarm: str, me: str,
        fresh_inc: Callable[[], int], may: Callable[[str], bool], admits: Callable[[str], bool], budget: Budget,
        directions: Callable[[int], Mapping[str, tuple[float, float]]] = lambda _round: {},
        noted: Callable[[Mapping[str, Outcome], Collection[str]], None] = lambda _outcomes, _clipped: None,
        transactions: Transactions | None = None,
    ) -> None:  # fmt: skip
        pace = manifest.pace
        longest_s = pace.max_wait_s if pace.kind == "steps" else pace.slot_s  # a visit is over when its slot is
        waits = Waits(Deadline(min(pace.min_wait_s, longest_s), longest_s))
        self._pace: Rounds | Slots
        if pace.kind == "steps":
            self._pace = Rounds(waits, MAX_LEAD)
        else:
            self._pace = Slots(waits, manifest.mix.theta, blake2b(swarm.encode(), digest_size=16).digest())
        self._engine = engine
        self._report = report
        self._me = me
        self._fresh_inc = fresh_inc
        self._may = may
        self._admits = admits
        self._budget = budget
        self._runners: dict[str, EdgeRunner] = {}
        self._directions_of = directions
        self._noted = noted
        self._clipped: set[str] = set()  # since that was told last
        self._directions: Mapping[str, tuple[float, float]] = {}  # of this round
        self._transactions = transactions if transactions is not None else Transactions()
        self._reception = Reception(network, report)
        self._around = Surroundings(
            network, engine, report, budget, lambda peer: self._directions.get(peer, (None, None)), fresh_inc,
            self._reception.spawn, self._notice, self._transactions,
        )  # fmt: skip
        self._outcomes: Counter[str] = Counter()
        self._committed: Counter[str] = Counter()
        self._since = math.inf  # when the local steps of the round began
        self._late: set[str] = set()  # who had done the open round before us
        self._early: set[str] = set()  # who told us that we are ahead: tried again in a while, not at once
        self._renewing = False  # all edges begin anew just now
        self.payload_bytes = 0
        self.dropped: Callable[[str], None] = lambda _peer: None
        """Clock pace: told when a peer closed the edge or has no room for it."""

    # --- what others may know -----------------------------------------------------------------------------

    @property
    def edges(self) -> Mapping[str, Edge]:
        """By peer."""
        return {peer: runner.edge for peer, runner in self._runners.items()}

    @property
    def stats(self) -> Exchanges:
        """How exchanges ended, both ends counted."""
        return Exchanges(**self._outcomes)

    @property
    def behind(self) -> int:
        """The round (slot) that peers have credibly reached."""
        return self._pace.heard.lead

    def committed(self, peer: str) -> int:
        """Exchanges committed with `peer`."""
        return self._committed[peer]

    def round_of(self, peer: str) -> int | None:
        """Highest round (slot) heard of `peer`."""
        return self._pace.heard.rounds.get(peer)

    def welcome(self, accept: Callable[[str], bool]) -> None:
        """Clock pace: ask `accept` whether a calling peer may have an edge; without, everybody may."""
        self._slots.welcome = accept

    # --- the service --------------------------------------------------------------------------------------

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Answer peers until cancelled."""
        await self._reception.serve(self._receive, self._chase, task_status=task_status)

    async def _chase(self) -> None:
        """Ask again for proofs that were lost, ever more rarely: an initiator that gave up is silent.

        No link may lead to that peer any more, and half a transaction biases the swarm for good.
        """
        asked: dict[str, tuple[Pending, int]] = {}
        turn = 0
        while True:
            await trio.sleep(self._pace.waits.patience.wait_s())
            turn += 1
            pending = {peer: runner.edge.pending for peer, runner in self._runners.items()}
            asked = {
                peer: asked[peer] if peer in asked and asked[peer][0] is it else (it, turn)
                for peer, it in pending.items()
                if it is not None
            }
            for peer, (_, since) in asked.items():
                age = turn - since
                if age & -age == age > 0 and peer not in self._pace.waiting:
                    self._runners[peer].retry()

    def _receive(self, peer: str, frame: bytes) -> None:
        if not self._admits(peer):
            return
        message = decode("exchange", peer, frame)
        if isinstance(message, Pulling):
            raise RemoteProtocolError(peer, "wrong_kind_of_exchange")
        runner = self._runner(peer)
        commands = runner.edge.receive(message)
        self._transactions.heard(peer, message)
        runner.feed(commands)
        if isinstance(message, Busy):
            self._pace.heard.note(peer, message.round)

    def _runner(self, peer: str) -> EdgeRunner:
        runner = self._runners.get(peer)
        if runner is None:
            runner = self._runners[peer] = EdgeRunner(self._me, peer, self._around)
        return runner

    def _notice(self, peer: str, notice: Notice) -> None:
        now = trio.current_time()
        match notice:
            case Asked(request):
                self._decide(peer, request, self._pace.admit(peer, request, now))
            case Poked(poke):
                self._decide(peer, poke, self._pace.admit(peer, poke, now))
            case Ended():
                self._ended(peer, notice, now)
            case Unreachable() if peer in self._pace.waiting:
                self._pace.resolved(peer, self._pace.round, "timeout", now)
                self._give_up(peer)
            case Settled():
                self.dropped(peer)
            case Clipped():
                self._clipped.add(peer)
            case Leaned() if not self._renewing:
                self._renewing = True
                self._report.event(
                    "edges_anew", f"the other flows leaned against that of {peer}: all edges start anew", peer=peer
                )
                self._reception.spawn(self._renew)
        self._reception.move()

    def _note(self, outcomes: Mapping[str, Outcome]) -> None:
        clipped = self._clipped & outcomes.keys()
        self._clipped -= clipped  # what a peer proves later counts with its next exchange
        self._noted(outcomes, clipped)

    def _ended(self, peer: str, ended: Ended, now: float) -> None:
        self._outcomes[ended.outcome] += 1
        self._transactions.end(peer, ended)
        if ended.outcome == "committed":
            self._committed[peer] += 1
            self.payload_bytes += ended.payload_bytes
        if ended.reason == "full":
            self.dropped(peer)
        if ended.reason == "late" and ended.round == self._pace.round:
            self._late.add(peer)
        if ended.reason == "early" and ended.role == "initiator":
            self._early.add(peer)
        if ended.reason not in TRY_AGAIN:
            self._pace.resolved(peer, ended.round, ended.outcome, now)

    def _decide(self, peer: str, wish: Wish, admission: Admission) -> None:
        runner = self._runners[peer]
        match admission:
            case Now() if isinstance(wish, Request):
                runner.feed(runner.edge.accept(wish.inc, wish.seq))
            case Now():
                if runner.edge.ready and (isinstance(self._pace, Slots) or peer in self._pace.waiting):
                    self._begin(peer)
            case Refuse(reason) if isinstance(wish, Request):
                runner.feed(runner.edge.refuse(wish.inc, wish.seq, reason, self._pace.round))
            case Refuse(reason):
                runner.feed(runner.edge.refuse_poke(reason, self._pace.round))
            case _:
                pass  # parked: comes back as a Verdict

    def _decide_all(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            self._decide(verdict.peer, verdict.wish, verdict.admission)

    def _begin(self, peer: str) -> None:
        runner, pace = self._runner(peer), self._pace
        runner.feed(runner.edge.begin(pace.round, pace.view, pace.theta(peer)))

    # --- steps pace ---------------------------------------------------------------------------------------

    @property
    def _rounds(self) -> Rounds:
        if not isinstance(self._pace, Rounds):
            raise LocalProtocolError("rounds are for steps pace")
        return self._pace

    def computing(self, round: int, links: Mapping[str, float], view: bytes) -> None:
        """Local steps of `round` begin: wishes for it are kept until they are done.

        Args:
            round: which.
            links: peer -> mixing weight, as far as known yet.
            view: digest of the member list.
        """
        self._since = trio.current_time()
        self._decide_all(self._rounds.compute(round, links, view))

    async def round(self, round: int, links: Mapping[str, float], view: bytes) -> RoundOutcome:
        """All exchanges of a round, then Mix.

        Args:
            round: which; its local steps are done.
            links: peer -> mixing weight.
            view: digest of the member list that the links come from.

        Raises:
            EngineError: the engine cannot mix.
        """
        rounds = self._rounds
        self._late.clear()
        self._directions = self._directions_of(round)
        now = trio.current_time()
        verdicts = rounds.open(round, links, view, now, max(0.0, now - self._since))
        self._since = math.inf
        try:
            self._decide_all(verdicts)
            await self._until_resolved()
            outcomes = dict(rounds.outcomes)
        finally:
            rounds.close()
        for runner in list(self._runners.values()):
            await runner.rest()
        self._note(outcomes)
        reply = await self._engine.call(calls.Mix(round))
        if not isinstance(reply, calls.Done):
            raise EngineError(f"round {round} was not mixed: {reply}")
        return RoundOutcome(round, outcomes, self._left_behind(round), reply.distance)

    def _left_behind(self, round: int) -> int:
        """Where peers are if they have left us behind; one liar moves us by MAX_JUMP at most, and not at all with a wild claim."""
        rounds = self._rounds
        if rounds.heard.lead > round + MAX_LEAD:
            return rounds.heard.lead
        told = [claim for peer in self._late if (claim := rounds.heard.of(peer)) <= round + MAX_LEAD]
        return min(max(told, default=round), round + MAX_JUMP)

    # --- clock pace ---------------------------------------------------------------------------------------

    @property
    def _slots(self) -> Slots:
        if not isinstance(self._pace, Slots):
            raise LocalProtocolError("slots are for clock pace")
        return self._pace

    async def contact_next(self, edges: Iterable[str], slot: int) -> Outcome | None:
        """Visit the next of our edges in this slot. -> how it ended, None if there is none to visit"""
        unresolved = {peer for peer, runner in self._runners.items() if runner.edge.unresolved}
        self._enter(slot)
        peer = self._slots.next(edges, unresolved)
        return None if peer is None else await self.contact(peer, slot)

    async def contact(self, peer: str, slot: int) -> Outcome:
        """Visit one peer: begin an exchange, or ask it to begin. -> how it ended"""
        slots, runner = self._slots, self._runner(peer)
        self._enter(slot)
        slots.visit(peer, trio.current_time())
        if not runner.edge.initiator:
            self._nudge(peer)
        await self._until_resolved()
        self._note({peer: slots.outcomes[peer]})
        return slots.outcomes[peer]

    def _enter(self, slot: int) -> None:
        """Exchanges begun for a peer that poked us have until the end of the next slot."""
        self._slots.enter(slot)
        for runner in list(self._runners.values()):
            out = runner.edge.outstanding
            if out is not None and out.round < slot - 1:
                runner.feed(runner.edge.abort("timeout", "deadline"))

    # --- both ---------------------------------------------------------------------------------------------

    async def _until_resolved(self) -> None:
        """Wait until the pace waits for nobody; at its deadline give up what is left."""
        pace = self._pace
        attempts: Counter[str] = Counter()
        self._early.clear()
        now = trio.current_time()
        retry_at = {peer: now + pace.waits.retry_s(peer) for peer in pace.waiting}
        try:
            while not pace.done:
                self._give_up_passed(now)
                for peer in pace.waiting:
                    due = now >= retry_at[peer]
                    if due:
                        retry_at[peer] = now + pace.waits.retry_s(peer)
                        self._nudge(peer)
                    may_begin = self._runner(peer).edge.ready and (due or peer not in self._early)
                    if may_begin and attempts[peer] < MAX_ATTEMPTS:
                        attempts[peer] += 1
                        self._early.discard(peer)
                        self._begin(peer)
                if not pace.done:
                    with trio.move_on_at(min(min(pace.waits.until(peer), retry_at[peer]) for peer in pace.waiting)):
                        await self._reception.moved()
                now = trio.current_time()
                for peer in pace.tick(now):
                    self._give_up(peer)
        finally:
            for peer in pace.waiting:  # cancelled
                pace.resolved(peer, pace.round, "timeout", now)
                self._give_up(peer)

    def _give_up_passed(self, now: float) -> None:
        """Steps pace: a peer that has gone on to a later round does not come back for a link of ours."""
        pace = self._pace
        if not isinstance(pace, Rounds):
            return
        for peer in pace.waiting:
            edge = self._runner(peer).edge
            under_way = any(it is not None and it.round == pace.round for it in (edge.outstanding, edge.pending))
            if pace.passed(peer) and not under_way:
                self._missed(peer, "busy")
                self._late.add(peer)
                pace.resolved(peer, pace.round, "busy", now)

    def _nudge(self, peer: str) -> None:
        """Repeat what is not answered; where nothing is under way and we do not begin, ask the peer to."""
        runner = self._runner(peer)
        if runner.edge.unresolved or runner.edge.initiator or runner.edge.closing:
            runner.retry()
        else:
            runner.feed(runner.edge.poke(self._pace.round, self._pace.view))

    def _give_up(self, peer: str) -> None:
        """A link was resolved as a timeout."""
        runner = self._runner(peer)
        if not runner.edge.unresolved:
            self._missed(peer, "timeout")
        runner.feed(runner.edge.abort("timeout", "deadline"))

    def _missed(self, peer: str, outcome: Outcome) -> None:
        """Nothing began, so no transaction is there to say it."""
        self._outcomes[outcome] += 1
        self._transactions.missed(peer, self._pace.round, outcome, asked=self._me < peer)

    # --- membership and engine ----------------------------------------------------------------------------

    async def settle(self, peer: str) -> bool:
        """Close the edge in order; the caller sets the deadline. -> its flow is settled; else it was deleted, or there was none"""
        runner = self._runners.get(peer)
        if runner is None:
            return False
        inc = runner.edge.inc
        runner.feed(runner.edge.close())
        while runner.edge.closing:
            with trio.move_on_after(self._pace.waits.patience.wait_s() / TRIES):
                await self._reopened(runner)
            runner.retry()
        await runner.rest()
        return runner.edge.settled is not None and runner.edge.settled[0] == inc

    async def _reopened(self, runner: EdgeRunner) -> None:
        while runner.edge.closing:
            await self._reception.moved()

    async def revoke(self, peer: str, *, settled: bool) -> None:
        """The peer is gone, banned or reborn: delete its flow, what was settled too if `settled`."""
        self._pace.resolved(peer, self._pace.round, "aborted", trio.current_time())
        self._pace.forget(peer)
        self._clipped.discard(peer)
        self._budget.forget(peer)
        self._reception.move()
        runner = self._runners.get(peer)
        if runner is None:
            runner = EdgeRunner(self._me, peer, self._around)  # whose first act is to delete
        else:
            runner.reset(settled=settled)
        await runner.rest()
        if self._runners.get(peer) is runner and not runner.edge.unresolved:
            del self._runners[peer]

    async def _renew(self) -> None:
        await self.reset_all()
        self._renewing = False

    async def reset_all(self) -> None:
        """The engine holds no flow any more, or none that is worth keeping: begin every edge anew and say so."""
        runners = list(self._runners.items())
        for peer, runner in runners:
            runner.reset()
            if self._may(peer):
                runner.feed(runner.edge.greet())
        self._reception.move()
        for _peer, runner in runners:
            await runner.rest()
