"""How long to wait for a neighbor, when to try it again and when to give it up."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from statistics import median_low

from starling.gossip.exchange.commands import Outcome
from starling.gossip.late import late_after
from starling.gossip.limits import keep, tolerable

WINDOW = 32  # outcomes remembered
ENOUGH = 5  # fewest answers in the window for an estimate
SLACK = 0.05  # smallest spread, as a share of the median: equal answers do not make the next one late
TRIES = 6  # retries before the deadline where answers are quick
HASTE = 2.0
"""Shortest time to a retry, in quickest answers of the peer: a payload on a slow link is under way, not lost."""
RECENT = 5  # peers whose last payload says how long payloads take
WHOLE = 4.0  # time of a whole exchange, in those that one payload takes to be sent: there and back, and as long again
UNDER_WAY = 2.5  # the same until a retry: there and back, and some more
FAR = 2.0  # how many times longer than others' the exchanges of a peer may take without being called late: it may be behind a relay
CALLS = 3.0  # of engines before an exchange is committed: to offer, to answer, to apply
STRETCH = 16.0  # most that payloads and engines lengthen a deadline
FELT = 0.25  # of the time of a round's local steps: who made a node wait so much longer than others do is remembered
WITHDRAWN_ROUNDS = 4  # without patience for who made this node late, the first time; doubles …
MOST_WITHDRAWN_ROUNDS = 1024  # … up to this
MISSED = 3  # links in a row that a peer let expire, after which it is given no more than is usual either
MOST_ALONE = 32  # rounds without a link that lengthen the next: base-2 leaves the last of 8,193 members out of 26
FORGETTING = 1.1  # growth of the remembered quickest answer at every answer, so that a link may become slower


@dataclass(slots=True)
class Deadline:
    """An adaptive deadline: median + k · MAD of recent answers, between two bounds.

    MAD is the median absolute deviation, taken as at least SLACK · median. Fewer than ENOUGH answers among the last
    WINDOW outcomes: the upper bound.

    Timeouts take a place in the window but have no value: one dead peer, even with half of the outcomes, changes nothing. If nearly all
    outcomes are timeouts the network has become slower than the deadline; then answers run out, the upper bound holds, and the deadline
    is learned anew. Nor can it ratchet down by cutting off its own evidence: answers spread evenly up to the deadline put it at
    (1/2 + k/4) of itself, which k > 2 makes an increase.
    """

    min_wait_s: float  # > 0
    max_wait_s: float  # >= min_wait_s
    k: float = 4.0  # spreads beyond the median, > 2
    _outcomes: deque[float | None] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def __post_init__(self) -> None:
        if not 0.0 < self.min_wait_s <= self.max_wait_s:
            raise ValueError(f"need 0 < min_wait_s <= max_wait_s, got {self.min_wait_s} and {self.max_wait_s}")
        if self.k <= 2.0:
            raise ValueError(f"k must be > 2, got {self.k}")

    def observe(self, wait_s: float | None) -> None:
        """A neighbor answered after this long, >= 0; None: it did not answer before the deadline."""
        self._outcomes.append(wait_s)

    def wait_s(self) -> float:
        """How long to wait now, in [min_wait_s, max_wait_s]."""
        answers = [wait for wait in self._outcomes if wait is not None]
        if len(answers) < ENOUGH:
            return self.max_wait_s
        return min(max(late_after(answers, self.k, SLACK), self.min_wait_s), self.max_wait_s)


@dataclass(slots=True)
class TransferTimes:
    """How long payloads of exchanges take to be sent, in seconds, by the last one to each of the last peers.

    Fewer than half of those peers, if they are slow, change nothing; a slow line, which all of them share, does. A request is several times
    as long as a response, so times are compared by the byte, and the longest payload counts.
    """

    _sent: dict[str, tuple[float, int]] = field(default_factory=dict)  # seconds, bytes

    def observe(self, peer: str, seconds: float, count: int = 1) -> None:
        """The network took a payload of `count` >= 1 bytes for `peer` in so long, >= 0."""
        keep(self._sent, peer, (seconds, count), RECENT)

    def usual_s(self) -> float:
        """What the longest of them takes, by the median over these peers, the lower one of an even number; 0 before the first payload."""
        if not self._sent:
            return 0.0
        each_s = median_low(seconds / count for seconds, count in self._sent.values())
        return each_s * max(count for _, count in self._sent.values())

    def forget(self, peer: str) -> None:
        """A peer is gone."""
        self._sent.pop(peer, None)


@dataclass(slots=True)
class CallTimes:
    """How long this node's engine takes for a call of an exchange, in seconds: the local step that it waits for, and the work."""

    _took: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def observe(self, seconds: float) -> None:
        """A call was answered in so long, >= 0."""
        self._took.append(seconds)

    def usual_s(self) -> float:
        """Median of the last, the lower one of an even number; 0 before the first."""
        return median_low(self._took) if self._took else 0.0


@dataclass(slots=True)
class Timeouts:
    """Waiting for links, one round or visit at a time, up to an adaptive deadline.

    Where the payloads of an exchange take longer to be sent than the deadline's upper bound allows, or engines longer to make and read
    them, no exchange would ever be in time: then the time that they take is the deadline, up to STRETCH upper bounds. Nor is a payload
    repeated that must still be under way. Of engines a node knows its own, so a peer with a slower one lengthens nothing.

    Whoever is slow to all is waited for by all, and nobody is late. Where others went on while this node waited (`overtaken`), the peer it
    lately waited for the longest has made it late, by intent or not: from then on it is given no more than is usual, for
    WITHDRAWN_ROUNDS rounds, twice as many the next time, so that what one peer takes is a few rounds in all and its own edge. So is a
    peer that let MISSED links in a row expire, whatever it said meanwhile: who waits for it in vain is out of phase with those that do not.

    Patience is for peers that are at work. One that is `silent`, which answers no probe either, is given no more than is usual, nor is one
    that was `lately_gone`, as a line that comes and goes will soon be gone again.

    Some overlays leave members without a link in some rounds. Such a node waits for nobody, and so runs ahead of those that wait. The peer
    of its next link, silent or not, is given FAR times the time of these rounds besides, and that link does not count among those in a row
    that it let expire. A peer for which patience was withdrawn is not given that time.

    A node that is itself `behind`, because enough other peers are in later rounds, waits for nobody longer than the shortest deadline, or
    what is usual where that is more, and the time of a round's local steps. A peer that is one round behind answers within that time, and
    peers that already wait for this node do so for as long. Deadlines differ between nodes: without this bound a node with a longer one
    would stay out of phase with the others for many rounds.

    Deadlines are learned from peers that came in time, and one whose every exchange takes longer, as behind a relay, may be late by as much
    each time. A peer that came after it was given up is given that time from then on, at most FAR times what others are given.

    None of these bounds is less than what payloads usually take, since an answer may have to wait for one to be sent.
    """

    deadline: Deadline
    silent: Callable[[str], bool] = lambda _peer: False
    lately_gone: Callable[[str], bool] = lambda _peer: False
    """Whether a peer was silent and has not been back for long."""
    transfers: TransferTimes = field(default_factory=TransferTimes)
    calls: CallTimes = field(default_factory=CallTimes)
    expires: float = inf
    """When to give up; infinite while no peer is waited for. A peer that was late the last time has less, see `until`."""
    solicit_s: float = inf
    """Seconds without progress after which to ask a peer to begin, if that is its part: so it learns that it is waited for."""
    _opened: float = 0.0
    _wait_s: float = inf
    _lag_s: float = 0.0
    _alone_s: float = 0.0
    """What a peer is given besides because this node had no link in the rounds before."""
    _quickest: dict[str, float] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)
    _waits: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """The last answers: of whom, and after how long."""
    _missed: dict[str, int] = field(default_factory=dict)
    """Links in a row that a peer let expire; those at which it had no patience to lose are not counted."""
    _expired: dict[str, float] = field(default_factory=dict)
    """When waiting began for peers whose last link expired, and that did not come since."""
    _needs: dict[str, float] = field(default_factory=dict)
    """Seconds after which peers came that had been given up; as they are in time again, a little less each time."""
    _felt: dict[str, float] = field(default_factory=dict)
    """Seconds that a peer lately made this node wait beyond what is usual; half as many each round."""
    _withdrawn: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Peers without patience: (round of ours, as counted here, from which they have it again, for how many rounds it was)."""
    _round: int = 0

    @property
    def stretch(self) -> float:
        """How many times the deadline's upper bound an exchange is given because of what payloads and engines take, in [1, STRETCH]."""
        takes_s = WHOLE * self.transfers.usual_s() + 2.0 * CALLS * self.calls.usual_s()
        return min(max(1.0, takes_s / self.deadline.max_wait_s), STRETCH)

    @property
    def longest_s(self) -> float:
        """The longest that an exchange may take."""
        return self.stretch * self.deadline.max_wait_s

    def begin(self, now: float, steps_s: float = 0.0, exchange_s: float = 0.0, alone: int = 0) -> None:
        """Waiting begins; a round's local steps take `steps_s`, its exchange `exchange_s` where both ends are ready.

        `alone`: rounds without a link just before, of which MOST_ALONE count.

        A peer may be late without a fault: it waited for another. So a peer that was in time the last time gets twice the time of both
        beyond the learned deadline, one that was late gets it once: a node that waits for a straggler is still waited for itself. With
        equal deadlines for all, one straggler would desynchronise the whole swarm.
        """
        self._wait_s = self.longest_s if self.stretch > 1.0 else self.deadline.wait_s()
        self._opened, self._lag_s = now, steps_s + exchange_s
        self._alone_s = min(alone, MOST_ALONE) * FAR * self._lag_s
        self.solicit_s = (self._wait_s + 2.0 * steps_s) / TRIES
        self.expires = now + self._given_s
        self._round += 1
        self._felt = {
            peer: seconds / 2.0 for peer, seconds in self._felt.items() if seconds > FELT / 16.0 * self._lag_s
        }

    def until(self, peer: str, *, behind: bool = False, ahead: bool = False) -> float:
        """When to give `peer` up. `behind`: more peers than may lie report a later round than the one that is waited in; `ahead`: no more
        than may lie have come as far.
        """
        expires = self.expires
        hurried = self.hurried(peer)
        if not self.out_of_phase:
            expires -= self._lag_s * (peer in self._late)
        elif ahead and not hurried:
            expires = self._opened + self.longest_s
        if not (hurried or behind):
            return max(expires, self._opened + min(self._needed_s(peer), FAR * self._given_s))
        longest_s = max(self.usual_s(peer), FELT / 2.0 * self._lag_s, WHOLE * self.transfers.usual_s())
        if not self.silent(peer):
            longest_s = max(
                longest_s,
                HASTE * min(self._quickest_lately().get(peer, 0.0), FAR * self.exchange_s),
                min(self._needed_s(peer), FAR * self.usual_s(peer)),
            )
        if not hurried:
            longest_s = max(longest_s, self.deadline.min_wait_s) + self._lag_s
        return min(expires, self._opened + longest_s + (0.0 if self._patience_withdrawn(peer) else self._alone_s))

    @property
    def _given_s(self) -> float:
        """What a peer is given that was in time the last time."""
        return self._wait_s + 2.0 * self._lag_s + self._alone_s

    def _needed_s(self, peer: str) -> float:
        """What a peer that came too late is known to need, and the time of a round's local steps and exchange; 0 of others."""
        needs_s = self._needs.get(peer)
        return 0.0 if needs_s is None else needs_s + self._lag_s

    @property
    def exchange_s(self) -> float:
        """What an exchange takes where both ends are ready: a peer's quickest of the last answers, the lower median over peers, or 0."""
        quickest = self._quickest_lately()
        return median_low(quickest.values()) if quickest else 0.0

    def _quickest_lately(self) -> dict[str, float]:
        quickest: dict[str, float] = {}
        for peer, wait_s in self._waits:
            quickest[peer] = min(wait_s, quickest.get(peer, inf))
        return quickest

    @property
    def out_of_phase(self) -> bool:
        """Two peers more than may lie let their last link expire: this node is not where they are, and to hurry would keep it there."""
        return len(self._late) > tolerable(len(self._late | self._quickest.keys())) + 1

    def usual_s(self, peer: str = "") -> float:
        """How long a link usually takes: twice the median of the last answers of others than `peer`, at most the deadline."""
        others = [wait for other, wait in self._waits if other != peer]
        return min(HASTE * median_low(others), self._wait_s) if others else self._wait_s

    def impatient(self, peer: str) -> bool:
        """Whether this node waits for `peer` no longer than is usual."""
        return (self._patience_withdrawn(peer) or self.lately_gone(peer)) and not self.out_of_phase

    def _patience_withdrawn(self, peer: str) -> bool:
        return self._round < self._withdrawn.get(peer, (0, 0))[0]

    def hurried(self, peer: str) -> bool:
        """Whether `peer` is given no more than is usual: there is no patience left, or it answers no probe."""
        return self.impatient(peer) or self.silent(peer)

    def overtaken(self) -> None:
        """Others did a round while this node waited: whom it waited for it will not wait for again so soon."""
        peer = max(self._felt, key=lambda it: (self._felt[it], it), default="")
        if self._felt.get(peer, 0.0) < max(FELT * self._lag_s, self.usual_s(peer)):
            return
        self._withdraw(peer)
        self._felt.clear()

    def _withdraw(self, peer: str) -> None:
        _, before = self._withdrawn.get(peer, (0, 0))
        rounds = min(max(2 * before, WITHDRAWN_ROUNDS), MOST_WITHDRAWN_ROUNDS)
        self._withdrawn[peer] = self._round + rounds, rounds

    def end(self) -> None:
        """Waiting is over."""
        self.expires = inf

    def retry_s(self, peer: str) -> float:
        """Seconds without progress after which to try `peer` again."""
        under_way_s = UNDER_WAY * self.transfers.usual_s() + CALLS * self.calls.usual_s()
        return max(self.solicit_s, HASTE * self._quickest.get(peer, 0.0), under_way_s)

    def resolve(self, peer: str, outcome: Outcome, now: float) -> None:
        """The exchange with `peer` ended; only a commit or a timeout says how long to wait."""
        beyond_s = now - self._opened - self.usual_s(peer) - self._alone_s
        if beyond_s > 0.0 and not self.impatient(peer):
            self._felt[peer] = self._felt.get(peer, 0.0) + beyond_s
        if outcome == "committed":
            self.answered(peer, now)
        elif outcome == "timeout":
            self._expired[peer] = self._opened
            self.missed(peer)

    def answered(self, peer: str, now: float) -> None:
        """The exchange with `peer` committed."""
        wait_s = now - self._opened
        self._late.discard(peer)
        self._missed.pop(peer, None)
        self._expired.pop(peer, None)
        if peer in self._needs:
            self._needs[peer] = max(wait_s, self._needs[peer] / FORGETTING)
        self.deadline.observe(wait_s)
        self._waits.append((peer, wait_s))
        self._quickest[peer] = min(wait_s, FORGETTING * self._quickest.get(peer, inf))

    def missed(self, peer: str) -> None:
        """The peer did not answer in time. Perhaps its quickest answer was none, but one of several tries: retry sooner."""
        self._late.add(peer)
        if peer in self._quickest:
            self._quickest[peer] /= 2.0
        self.deadline.observe(None)
        if not (self.impatient(peer) or self._alone_s):
            self._missed[peer] = self._missed.get(peer, 0) + 1
            if self._missed[peer] >= MISSED:
                self._withdraw(peer)

    def came(self, peer: str, now: float) -> None:
        """The peer came for a link that had expired. Unless it had been given more already, it did not miss it."""
        needs_s = now - self._expired.pop(peer, now)
        if 0.0 < needs_s <= FAR * self._given_s:
            if peer not in self._needs:
                self._missed.pop(peer, None)
            self._needs[peer] = needs_s

    def forget(self, peer: str) -> None:
        """A peer is gone."""
        self._quickest.pop(peer, None)
        self._late.discard(peer)
        self._missed.pop(peer, None)
        self._expired.pop(peer, None)
        self._needs.pop(peer, None)
        self._felt.pop(peer, None)
        self._withdrawn.pop(peer, None)
        self.transfers.forget(peer)
