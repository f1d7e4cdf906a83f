"""Deadlines for a neighbor's answer, for a retry, and for giving the link up."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from starling.gossip.exchange.commands import Outcome
from starling.gossip.exchange.estimates import AnswerTimes, CallTimes, Deadline, TransferTimes
from starling.gossip.exchange.lateness import MIN_DELAY, Lateness, Withdrawals
from starling.gossip.exchange.wait_rules import MAX_FACTOR, Context, PeerFacts, Position, seconds_for

RETRIES = 6
"""Tries before the deadline where answers are quick."""
EXCHANGE_PAYLOADS = 4.0
"""Duration of an exchange in send times of one payload: there and back, and as long again."""
RETRY_PAYLOADS = 2.5
"""Time until a retry, in send times of one payload: there and back, and some more."""
ENGINE_CALLS = 3.0
"""Calls of engines before an exchange is committed: to offer, to answer, to apply."""
MAX_STRETCH = 16.0
"""Largest factor by which payloads and engine calls lengthen a deadline."""
MAX_UNLINKED_ROUNDS = 32
"""Rounds without a link that lengthen the next deadline, at most: base-2 leaves the last of 8,193 members out of 26."""


@dataclass(slots=True)
class LinkDeadlines:
    """Deadlines of links, one round or visit at a time: collects the facts for the rules of `wait_rules`.

    Where the payloads of an exchange take longer to be sent than the deadline's upper bound allows, or engines longer to make and read
    them, no exchange would ever be in time: then the time that they take is the deadline, up to MAX_STRETCH upper bounds (decision 0063).
    Nor is a payload repeated that must still be under way. Of engines a node knows its own, so a peer with a slower one lengthens nothing.

    Some overlays leave members without a link in some rounds. Such a node waits for nobody, and so runs ahead of those that wait. The peer
    of its next link is given MAX_FACTOR times the time of these rounds in addition, and that link does not count among those in a row that
    it let expire (decision 0114).
    """

    deadline: Deadline
    silent: Callable[[str], bool] = lambda _peer: False
    lately_gone: Callable[[str], bool] = lambda _peer: False
    """Returns whether a peer was silent a short time ago."""
    transfers: TransferTimes = field(default_factory=TransferTimes)
    calls: CallTimes = field(default_factory=CallTimes)
    expires: float = inf
    """When to give up a peer that was in time the last time; infinite while no peer is waited for."""
    solicit_s: float = inf
    """Seconds without progress after which to ask a peer to begin, if that is its part: so it learns that it is waited for."""
    _answers: AnswerTimes = field(default_factory=AnswerTimes)
    _lateness: Lateness = field(default_factory=Lateness)
    _withdrawals: Withdrawals = field(default_factory=Withdrawals)
    _opened: float = 0.0
    _round: int | None = None
    _learned_s: float = inf
    _lag_s: float = 0.0
    _unlinked_s: float = 0.0

    @property
    def stretch(self) -> float:
        """Return the factor by which payloads and engine calls lengthen the deadline's upper bound, in [1, MAX_STRETCH]."""
        takes_s = self._payload_s + 2.0 * ENGINE_CALLS * self.calls.usual_s()
        return min(max(1.0, takes_s / self.deadline.max_wait_s), MAX_STRETCH)

    @property
    def longest_s(self) -> float:
        """Return the longest time that an exchange may take, in seconds."""
        return self.stretch * self.deadline.max_wait_s

    @property
    def exchange_s(self) -> float:
        """Return the seconds that an exchange takes if both ends are ready; 0 before any answer.

        The first answers were waited for by nodes that did not begin at once: before there are enough, at most the shortest deadline.
        """
        exchange_s = self._answers.exchange_s()
        return exchange_s if self.deadline.learned else min(exchange_s, self.deadline.min_wait_s)

    @property
    def out_of_phase(self) -> bool:
        """Return whether at least f + 2 peers let their last link expire: then this node is at another point of its round than they are,
        and shorter waits would keep it there.
        """
        return self._lateness.more_than_may_lie(self._answers.peers)

    def begin(self, now: float, steps_s: float = 0.0, exchange_s: float = 0.0, unlinked: int = 0, round: int | None = None) -> None:
        """Start waiting: the round's local steps took `steps_s`, its exchange takes `exchange_s` where both ends are ready.

        `unlinked`: rounds without a link just before, of which MAX_UNLINKED_ROUNDS count. `round`: of the links; None: visits and pulls.
        """
        self._learned_s = self.longest_s if self.stretch > 1.0 else self.deadline.wait_s(steps_s + exchange_s)
        self._opened, self._lag_s, self._round = now, steps_s + exchange_s, round
        self._unlinked_s = min(unlinked, MAX_UNLINKED_ROUNDS) * MAX_FACTOR * self._lag_s
        self.solicit_s = (self._learned_s + 2.0 * steps_s) / RETRIES
        self.expires = now + self._in_time_s
        self._withdrawals.next_round(self._lag_s)

    def end(self) -> None:
        """Stop waiting."""
        self.expires = inf

    def until(self, peer: str, position: Position = "level") -> float:
        """Return when to give `peer` up."""
        return self.deadlines((peer,), position)[peer]

    def deadlines(self, peers: Iterable[str], position: Position = "level") -> dict[str, float]:
        """Return when to give each of these peers up."""
        context = self._context(position)
        return {peer: self._opened + seconds_for(self._facts(peer), context) for peer in peers}

    def usual_s(self, peer: str = "") -> float:
        """Return the usual time of answers of peers other than `peer`, at most the learned deadline."""
        return self._answers.usual_s(self._learned_s, but=peer)

    def unextended(self, peer: str) -> bool:
        """Return whether `peer` delayed this node, let links in a row expire or was gone lately, while this node is in phase."""
        return (self._withdrawals.active(peer) or self.lately_gone(peer)) and not self.out_of_phase

    def hurried(self, peer: str) -> bool:
        """Return whether `peer` gets only the usual time: its deadline is not extended, or it answers no probe."""
        return self.unextended(peer) or self.silent(peer)

    def retry_s(self, peer: str) -> float:
        """Return the seconds without progress after which to try `peer` again: on a slow link a payload may still be in flight."""
        under_way_s = RETRY_PAYLOADS * self.transfers.usual_s() + ENGINE_CALLS * self.calls.usual_s()
        return max(self.solicit_s, self._answers.retry_s(peer), under_way_s)

    def overtaken(self) -> None:
        """Withdraw the extended deadline of the peer that this node waited for while others did a round."""
        self._withdrawals.overtaken(lambda peer: max(MIN_DELAY * self._lag_s, self.usual_s(peer)))

    def resolve(self, peer: str, outcome: Outcome, now: float) -> None:
        """Learn from the end of the exchange with `peer`; only a commit or a timeout says how long to wait."""
        delay_s = now - self._opened - self.usual_s(peer) - self._unlinked_s
        if delay_s > 0.0 and not self.unextended(peer):
            self._withdrawals.delayed(peer, delay_s)
        if outcome == "committed":
            self._answered(peer, now - self._opened)
        elif outcome == "timeout":
            self._missed(peer)
        elif delay_s > MIN_DELAY * self._lag_s and not self.unextended(peer):
            self._withdrawals.missed(peer, owed=False)  # else who refuses at the last moment would be waited for for ever

    def came(self, peer: str, now: float, round: int | None = None) -> None:
        """Record that the peer came for a link that had expired. It did not miss that link, unless it already had an extended deadline.

        `round`: of which it comes; of an earlier one than that link's it says nothing of it. None: it comes for that link.
        """
        self.heard(peer, now)
        if not self._lateness.owes(peer, round):
            return
        self._withdrawals.works(peer)
        if self._lateness.arrived(peer, now, MAX_FACTOR * self._in_time_s):
            self._withdrawals.excuse(peer)

    def heard(self, peer: str, now: float) -> None:
        """Record a message of a peer about an exchange."""
        self._lateness.heard(peer, now)

    def mute_since(self) -> dict[str, float]:
        """Return the peers that sent nothing while several links in a row expired, and when the first of these was opened."""
        return self._lateness.mute_since()

    def forget(self, peer: str) -> None:
        """Delete the records of a peer that is gone."""
        for known in (self._answers, self._lateness, self._withdrawals, self.transfers):
            known.forget(peer)

    def _answered(self, peer: str, seconds: float) -> None:
        self._withdrawals.excuse(peer)
        self._lateness.in_time(peer, self._opened, seconds)
        self.deadline.observe(seconds)
        self._answers.observe(peer, seconds)

    def _missed(self, peer: str) -> None:
        self._lateness.expired(peer, self._opened, self._round or 0)
        self._answers.missed(peer)
        self.deadline.observe(None)
        if not (self.unextended(peer) or self._unlinked_s):
            self._withdrawals.missed(peer, owed=self._round is not None)

    @property
    def _payload_s(self) -> float:
        return EXCHANGE_PAYLOADS * self.transfers.usual_s()

    @property
    def _in_time_s(self) -> float:
        """Return the deadline of a peer that answered the last time, in seconds from the opening."""
        return self._learned_s + 2.0 * self._lag_s + self._unlinked_s

    def _facts(self, peer: str) -> PeerFacts:
        return PeerFacts(
            usual_s=self.usual_s(peer),
            silent=self.silent(peer),
            mute=self._round is not None and self._lateness.is_mute(peer),
            lately_gone=self.lately_gone(peer),
            withdrawn=self._withdrawals.active(peer),
            late=peer in self._lateness.last,
            owes=self._lateness.owes(peer),
            needs_s=self._lateness.needs_s(peer),
            quickest_s=self._answers.quickest_s.get(peer, 0.0),
        )

    def _context(self, position: Position) -> Context:
        return Context(
            learned_s=self._learned_s,
            learned=self.stretch > 1.0 or self.deadline.learned,
            lag_s=self._lag_s,
            unlinked_s=self._unlinked_s,
            shortest_s=self.deadline.min_wait_s,
            longest_s=self.longest_s,
            payload_s=self._payload_s,
            exchange_s=self.exchange_s,
            position=position,
            out_of_phase=self.out_of_phase,
        )
