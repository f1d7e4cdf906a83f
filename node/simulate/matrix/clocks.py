"""Virtual clocks of nodes in steps pace: durations of rounds, from what was computed and sent.

All nodes do round r "together" in the sense that their exchanges have its number; each has a clock of its own. A round of a pair begins
when both are done with their local steps, and takes the transfers:

    request   latency + bytes/rate      response  latency + bytes/rate     then the responder gets the proof one latency later

A link's rate is the lesser of both ends', each shared evenly by the exchanges it has in the round.

Deadlines are those of `gossip.exchange.wait_rules`: the end that is ready first waits for the other as long as its adaptive deadline
says, and the time of two more rounds of its own local steps, of one for a peer that was late the last time, and of MAX_FACTOR more for
each round just before in which it had no exchange. A peer that is ready later than that is late: there is no exchange, and the wait was
in vain. The same holds
for what was lost, and for a responder that misses a proof. Retries cost no time of their own, and what has begun in time is completed.

A node whose peers will all have given up before it is ready sits out: it is still at its local steps of an earlier
round while `missed` rounds go by. When it is back it does fewer local steps a round, and more again while it keeps up, as
`starling.node.daemon.training` fits them.

Shapes: N rows, m exchanges of two ends each.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import MAX_UNLINKED_ROUNDS
from starling.gossip.exchange.wait_rules import MAX_FACTOR
from starling.node.simulate.matrix.batch import RoundStats
from starling.node.simulate.matrix.schedule import Exchanges

Seconds = NDArray[np.float64]

_RECOVERY_ROUNDS = 10  # rounds in which a node that keeps up returns to all of its local steps
_ALL_STEPS = np.iinfo(np.int64).max


@dataclass(slots=True)
class Clocks:
    """Virtual time of each node in steps pace."""

    step_s: Seconds  # (N,) seconds of a local step, > 0
    bytes_per_s: Seconds  # (N,) bytes per second of each node's link, each way, > 0; inf: unlimited
    latency_s: float = 0.0  # seconds a message is under way, beyond its bytes, >= 0
    min_wait_s: float = 0.5  # least deadline of a round, > 0
    max_wait_s: float = 30.0  # longest
    frame_bytes: int = 64  # bytes of each message beyond its payload
    now_s: Seconds = field(init=False)  # (N,) when each node ended its last round
    sent_bytes: NDArray[np.int64] = field(init=False)  # (N,) so far
    _deadlines: list[Deadline] = field(init=False)
    _steps: NDArray[np.int64] = field(init=False)
    _missed: NDArray[np.int64] = field(init=False)
    _alone: NDArray[np.int64] = field(init=False)  # (N,) rounds without an exchange before the one under way
    _late: NDArray[np.int64] = field(init=False)  # (waiter·N + peer) of peers that were late the last time, ascending
    _ready_s: Seconds = field(init=False)  # (N,) times at which each is done with the current round's local steps
    _expires_s: Seconds = field(init=False)  # (2, m) when each end gives the other up
    _too_late: NDArray[np.bool_] = field(init=False)  # (m,)

    def __post_init__(self) -> None:
        n = len(self.step_s)
        self.now_s, self._late = np.zeros(n), np.zeros(0, np.int64)
        self.sent_bytes, self._missed, self._alone = np.zeros((3, n), np.int64)
        self._deadlines = [Deadline(self.min_wait_s, self.max_wait_s) for _ in range(n)]
        self._steps = np.full(n, _ALL_STEPS)

    def begin(self, steps: int, alive: NDArray[np.bool_], exchanges: Exchanges) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Begin a round of K = `steps` -> local steps (N,) that each row does in it, and (m,) exchanges that are too late for one end."""
        ends, wait_s = exchanges.ends, np.array([deadline.wait_s() for deadline in self._deadlines])
        lag_s = steps * self.step_s
        fitted = np.minimum(self._steps, steps)
        fitted = np.where(self._missed > 0, np.maximum(fitted // (self._missed + 1), min(steps, 1)), fitted)
        ready_s = self.now_s + fitted * self.step_s
        was_late = np.isin(self._codes(ends), self._late)
        lags = np.where(was_late, 1.0, 2.0) + MAX_FACTOR * np.minimum(self._alone, MAX_UNLINKED_ROUNDS)[ends]
        expires_s = ready_s[ends] + wait_s[ends] + lags * lag_s[ends]
        away = self._away(alive, ends, expires_s)
        one, other = ready_s[ends]
        late = np.where(one <= other, expires_s[0] < other, expires_s[1] < one) | away[ends].any(axis=0)
        if steps:
            kept_up = np.minimum(fitted + np.where(self._missed > 0, 0, max(1, steps // _RECOVERY_ROUNDS)), steps)
            self._steps = np.where(away, self._steps, kept_up)
        self._missed = np.where(away, self._missed + 1, 0)
        self._ready_s, self._expires_s, self._too_late = np.where(away, self.now_s, ready_s), expires_s, late
        return np.where(alive & ~away, fitted, 0), late

    def end(self, exchanges: Exchanges, stats: RoundStats) -> None:
        """The exchanges of the round took their time: clocks and bytes move on."""
        ends, ready_s = exchanges.ends, self._ready_s[exchanges.ends]
        initiates = ends == stats.ends[0]
        ends_s = self._ends_s(stats)
        first, answered = ready_s <= ready_s[::-1], stats.committed & ~self._too_late
        knows = answered & (initiates | ~stats.unproven)
        waits = ~knows & (first | ~self._too_late)  # a late end learns at once that it is late
        until_s = np.where(knows, np.where(initiates, *ends_s[:, None]), np.where(waits, self._expires_s, ready_s))
        self.now_s = self._ready_s.copy()
        np.maximum.at(self.now_s, ends.ravel(), until_s.ravel())
        for end, place in np.argwhere(knows | waits).tolist():
            wait_s = until_s[end, place] - ready_s[end, place] if knows[end, place] else None
            self._deadlines[ends[end, place]].observe(wait_s)
        codes = self._codes(ends)
        self._late = np.union1d(np.setdiff1d(self._late, codes[knows]), codes[waits])
        # two frames from the initiator (request and proof), one from the responder, if it responded
        frames = np.stack((np.full(len(stats.committed), 2), stats.sizes[1] > 0))
        self._alone += 1
        self._alone[ends] = 0
        np.add.at(self.sent_bytes, stats.ends, np.where(self._too_late, 0, stats.sizes + frames * self.frame_bytes))

    def joined(self, row: int, source: int) -> None:
        """Start a joined node's clock at that of the row whose model it took."""
        self.now_s[row] = self.now_s[source]
        self.sent_bytes[row] = 0
        self._steps[row], self._missed[row], self._alone[row] = _ALL_STEPS, 0, 0
        self._deadlines[row] = Deadline(self.min_wait_s, self.max_wait_s)
        n = len(self.now_s)
        self._late = self._late[(self._late // n != row) & (self._late % n != row)]

    def _codes(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (2, m), one number for each end and its peer."""
        return ends * len(self.now_s) + ends[::-1]

    def _away(self, alive: NDArray[np.bool_], ends: NDArray[np.int64], expires_s: Seconds) -> NDArray[np.bool_]:
        """Return (N,) rows that are still busy when the last of their peers gives up; without peers, when half of the others would."""
        last_s = np.full(len(self.now_s), -np.inf)
        np.maximum.at(last_s, ends.ravel(), expires_s[::-1].ravel())
        last_s[np.isinf(last_s)] = np.median(expires_s) if expires_s.size else np.inf
        return alive & (self.now_s > last_s)

    def _ends_s(self, stats: RoundStats) -> Seconds:
        """Return (2, m): when the initiator and the responder of an exchange that takes place are done with it."""
        ends, share = stats.ends, np.bincount(stats.ends[:, ~self._too_late].ravel(), minlength=len(self.now_s))
        rates = (self.bytes_per_s / np.maximum(share, 1))[ends].min(axis=0)
        transfers_s = ((stats.sizes + self.frame_bytes) / rates).sum(axis=0)
        end_s = self._ready_s[ends].max(axis=0) + 2.0 * self.latency_s + transfers_s
        return np.stack((end_s, end_s + self.latency_s))
