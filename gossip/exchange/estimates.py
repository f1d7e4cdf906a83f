"""Estimates of how long exchanges take: peers' answers, payloads on the line, calls of this node's engine. All times are seconds."""

from collections import deque
from collections.abc import KeysView
from dataclasses import dataclass, field
from math import inf
from statistics import median_low

from starling.gossip.limits import keep
from starling.gossip.robust_deadline import late_after

WINDOW = 32
"""Number of recent outcomes, answers or calls from which an estimate is computed."""
MIN_ANSWERS = 5
"""Fewest answers in the window for a learned deadline."""
UNLEARNED = 16.0
"""Rounds and answers for which a peer is waited for while fewer than those are known: more than a node five times slower needs."""
MIN_SPREAD = 0.05
"""Smallest spread of answers, as a share of their median: equal answers do not make the next one late."""
USUAL = 2.0
"""Medians of recent answers within which an answer is usual."""
TRANSFER_PEERS = 5
"""Peers whose last payload says how long payloads take."""
QUICKEST_GROWTH = 1.1
"""Factor by which the remembered quickest answer of a peer grows at each answer, so that its link may become slower."""


@dataclass(slots=True)
class Deadline:
    """An adaptive deadline: median + k · MAD of recent answers, between two bounds.

    MAD is the median absolute deviation, taken as at least MIN_SPREAD · median. Fewer than MIN_ANSWERS answers among the last WINDOW
    outcomes: the upper bound.

    Timeouts take a place in the window but have no value: one dead peer, even with half of the outcomes, changes nothing. If nearly all
    outcomes are timeouts the network has become slower than the deadline; then answers run out, the upper bound holds, and the deadline
    is learned anew. Nor can it ratchet down by cutting off its own evidence: answers spread evenly up to the deadline put it at
    (1/2 + k/4) of itself, which k > 2 makes an increase.
    """

    min_wait_s: float  # > 0
    max_wait_s: float  # >= min_wait_s
    k: float = 4.0  # number of spreads beyond the median, > 2
    _outcomes: deque[float | None] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def __post_init__(self) -> None:
        if not 0.0 < self.min_wait_s <= self.max_wait_s:
            raise ValueError(f"need 0 < min_wait_s <= max_wait_s, got {self.min_wait_s} and {self.max_wait_s}")
        if self.k <= 2.0:
            raise ValueError(f"k must be > 2, got {self.k}")

    def observe(self, wait_s: float | None) -> None:
        """Record that a neighbor answered after `wait_s` >= 0; None: it did not answer before the deadline."""
        self._outcomes.append(wait_s)

    @property
    def _answers(self) -> list[float]:
        return [wait for wait in self._outcomes if wait is not None]

    @property
    def learned(self) -> bool:
        """There are enough answers for a learned deadline."""
        return len(self._answers) >= MIN_ANSWERS

    def wait_s(self, lag_s: float = inf) -> float:
        """Return how long to wait now, in [min_wait_s, max_wait_s], where a round's local steps and exchange take `lag_s`."""
        answers = self._answers
        if not answers:
            return self.max_wait_s
        if len(answers) < MIN_ANSWERS:
            return min(max(UNLEARNED * lag_s, self.min_wait_s), self.max_wait_s)
        return min(max(late_after(answers, self.k, MIN_SPREAD), self.min_wait_s), self.max_wait_s)


@dataclass(slots=True)
class TransferTimes:
    """Seconds to send payloads of exchanges, from the last one to each of TRANSFER_PEERS peers.

    Fewer than half of those peers, if they are slow, change nothing; a slow line, which all of them share, does. A request is several times
    as long as a response, so times are compared by the byte, and the longest payload counts.
    """

    _sent: dict[str, tuple[float, int]] = field(default_factory=dict)  # seconds, bytes

    def observe(self, peer: str, seconds: float, count: int = 1) -> None:
        """Record that the network took a payload of `count` >= 1 bytes for `peer` within `seconds` >= 0."""
        keep(self._sent, peer, (seconds, count), TRANSFER_PEERS)

    def usual_s(self) -> float:
        """Return the time to send the longest payload, by the lower median over these peers; 0 before the first payload."""
        if not self._sent:
            return 0.0
        each_s = median_low(seconds / count for seconds, count in self._sent.values())
        return each_s * max(count for _, count in self._sent.values())

    def forget(self, peer: str) -> None:
        """Delete the times of a peer."""
        self._sent.pop(peer, None)


@dataclass(slots=True)
class CallTimes:
    """Seconds of an engine call in an exchange: the local step that the call waits for, and the work."""

    _took: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def observe(self, seconds: float) -> None:
        """Record that a call was answered after `seconds` >= 0."""
        self._took.append(seconds)

    def usual_s(self) -> float:
        """Return the lower median of the last calls; 0 before the first."""
        return median_low(self._took) if self._took else 0.0


@dataclass(slots=True)
class AnswerTimes:
    """Seconds of committed exchanges from the start of the wait."""

    quickest_s: dict[str, float] = field(default_factory=dict)
    """Fastest recent answer of each peer, in seconds."""
    _recent: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))  # peer, seconds
    _quickest: dict[str, float] = field(default_factory=dict)  # fastest answer of each peer so far, in seconds
    _medians: dict[str, float] = field(default_factory=dict)
    """Medians of the last answers by the peer that is left out; computed on demand."""

    def observe(self, peer: str, seconds: float) -> None:
        """Record that the exchange with `peer` committed after `seconds` >= 0."""
        self._recent.append((peer, seconds))
        self._quickest[peer] = min(seconds, QUICKEST_GROWTH * self._quickest.get(peer, inf))
        self._medians.clear()
        self.quickest_s = {}
        for each, took_s in self._recent:
            self.quickest_s[each] = min(took_s, self.quickest_s.get(each, inf))

    def missed(self, peer: str) -> None:
        """Halve the quickest answer time of a peer that did not answer: it may have answered an earlier try, so retry sooner."""
        if peer in self._quickest:
            self._quickest[peer] /= 2.0

    @property
    def peers(self) -> KeysView[str]:
        """Return all peers that ever answered."""
        return self._quickest.keys()

    def retry_s(self, peer: str) -> float:
        """Return the usual time of an answer of `peer`; 0 if it never answered."""
        return USUAL * self._quickest.get(peer, 0.0)

    def usual_s(self, longest_s: float, but: str = "") -> float:
        """Return USUAL medians of the last answers of peers other than `but`, at most `longest_s`, which is also used without answers."""
        if but not in self._medians:
            others = [seconds for peer, seconds in self._recent if peer != but]
            self._medians[but] = median_low(others) if others else inf
        return min(USUAL * self._medians[but], longest_s)

    def exchange_s(self) -> float:
        """Return the time of an exchange where both ends are ready: the lower median, over peers, of `quickest_s`; 0 before any answer."""
        return median_low(self.quickest_s.values()) if self.quickest_s else 0.0

    def forget(self, peer: str) -> None:
        """Delete the quickest answer of a peer; those in the window expire by themselves."""
        self._quickest.pop(peer, None)
        self._medians.pop(peer, None)
