"""How long rounds take: virtual seconds per node in steps pace, by arithmetic on what was computed and sent.

All nodes do round r "together" in the sense that their models meet by it; each has a clock of its own. A round of a pair begins when
both are done with their local steps, and takes the transfers:

    request   latency + bytes/rate      response  latency + bytes/rate     then the responder hears the proof one latency later

A link's rate is the lesser of the sender's up and the receiver's down, each shared evenly by the exchanges it has in the round.

Deadlines are those of `gossip.exchange.timeouts`: who is ready first waits for the other as long as it learned to, and the time of two more
rounds of its own local steps, of one for who was late the last time. A peer that is ready later than that is late: there is no exchange,
and who waited has waited for nothing. So it has for what was lost, and a responder for a lost proof. Retries cost no time of their own,
and what has begun in time is let finish.

Who finds at the beginning of a round that all it could meet will have given up before, sits out: it is still at its local steps of an
earlier round while `passed` rounds go by. When it is back it does fewer local steps a round, and more again while it keeps up, as
`starling.node.daemon.training` fits them.

Shapes: N rows, m meetings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from starling.gossip.exchange.timeouts import Deadline
from starling.node.simulate.matrix.round_stats import Done
from starling.node.simulate.matrix.schedule import Meetings
from starling.node.simulate.matrix.timeouts import Patience, Seconds

_RECOVERY_ROUNDS = 10  # in which a node that keeps up comes back to all of its local steps


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """What nodes and links can do. Each (N,) float64.

    Args:
        step_s: seconds of a local step, > 0.
        latency_s: seconds a message of this node is under way to anybody, beyond its bytes, >= 0; of a link the mean of both ends.
        up_bytes_per_s: > 0; inf: unlimited.
        down_bytes_per_s: likewise.
    """

    step_s: Seconds
    latency_s: Seconds
    up_bytes_per_s: Seconds
    down_bytes_per_s: Seconds


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """A round under way.

    Args:
        ready_s: (N,) when each is done with its local steps.
        expires_s: (2, m) when each end gives the other up: of `one`, then of `other`.
        late: (m,).
    """

    ready_s: Seconds
    expires_s: Seconds
    late: NDArray[np.bool_]


@dataclass(slots=True)
class Clocks:
    """Virtual time of each node in steps pace.

    Args:
        pace: what nodes and links can do.
        min_wait_s: least deadline of a round, > 0.
        max_wait_s: longest.
        frame_bytes: what each message costs beyond its payload.
    """

    pace: Pace
    min_wait_s: float = 0.5
    max_wait_s: float = 30.0
    frame_bytes: int = 64
    now_s: Seconds = field(init=False)
    """(N,) when each node ended its last round."""
    up_bytes: NDArray[np.int64] = field(init=False)
    """(N,) sent so far."""
    down_bytes: NDArray[np.int64] = field(init=False)
    """(N,) received so far."""
    _patience: Patience = field(init=False)
    _steps: NDArray[np.int64] = field(init=False)
    _passed: NDArray[np.int64] = field(init=False)
    _late: NDArray[np.int64] = field(init=False)  # (waiter·N + peer) of who was late the last time, ascending
    _opened: _Opened | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        n = len(self.pace.step_s)
        self.now_s = np.zeros(n)
        self.up_bytes, self.down_bytes = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._patience = Patience(n, Deadline(self.min_wait_s, self.max_wait_s))
        self._steps, self._passed = np.full(n, np.iinfo(np.int64).max), np.zeros(n, np.int64)
        self._late = np.zeros(0, np.int64)

    def begin(
        self, steps: int, alive: NDArray[np.bool_], meetings: Meetings
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A round begins -> local steps (N,) that each row does in it, and (m,) meetings that are too late for one end.

        Args:
            steps: K of who keeps up; 0: a round without.
            alive: (N,).
            meetings: of the round, among rows alive.
        """
        one, other = meetings.one, meetings.other
        wait_s, n = self._patience.wait_s(), len(self.now_s)
        lag_s = steps * self.pace.step_s
        fitted = np.minimum(self._steps, steps)
        fitted = np.where(self._passed > 0, np.maximum(fitted // (self._passed + 1), min(steps, 1)), fitted)
        ready_s = self.now_s + fitted * self.pace.step_s
        was_late = np.isin(np.stack((one * n + other, other * n + one)), self._late)
        expires_s = np.stack((ready_s[one], ready_s[other])) + np.stack((wait_s[one], wait_s[other]))
        expires_s += np.where(was_late, 1.0, 2.0) * np.stack((lag_s[one], lag_s[other]))
        away = self._away(alive, meetings, expires_s)
        late = np.where(ready_s[one] <= ready_s[other], expires_s[0] < ready_s[other], expires_s[1] < ready_s[one])
        late |= away[one] | away[other]
        if steps:
            kept_up = np.minimum(fitted + np.where(self._passed > 0, 0, max(1, steps // _RECOVERY_ROUNDS)), steps)
            self._steps = np.where(away, self._steps, kept_up)
        self._passed = np.where(away, self._passed + 1, 0)
        self._opened = _Opened(np.where(away, self.now_s, ready_s), expires_s, late)
        return np.where(alive & ~away, fitted, 0), late

    def end(self, meetings: Meetings, done: Done) -> None:
        """The exchanges took their time: clocks and bytes move on.

        Args:
            meetings: as at the beginning.
            done: what came of them.
        """
        assert self._opened is not None, "a round begins before it ends"
        opened, self._opened = self._opened, None
        initiates = np.where(done.initiator == meetings.one, 0, 1)
        ends_s = self._ends(meetings, done, opened, initiates)
        rows = np.stack((meetings.one, meetings.other))
        first = opened.ready_s[rows] <= opened.ready_s[rows[::-1]]
        answered = done.committed & ~opened.late
        knows = np.stack(
            (answered & ~(done.unproven & (initiates == 1)), answered & ~(done.unproven & (initiates == 0)))
        )
        waits = ~knows & (first | ~opened.late)  # who comes too late is told so at once
        until_s = np.where(knows, ends_s, np.where(waits, opened.expires_s, opened.ready_s[rows]))
        now_s = opened.ready_s.copy()
        np.maximum.at(now_s, rows.ravel(), until_s.ravel())
        self.now_s = now_s
        observed = np.where(knows, until_s - opened.ready_s[rows], np.nan)
        told = knows | waits
        self._patience.observe(rows[told], observed[told])
        self._note_late(rows, knows, waits)
        self._count(done, opened.late)

    def joined(self, row: int, source: int) -> None:
        """A node came: its clock is that of the row it took its model from."""
        self.now_s[row] = self.now_s[source]
        self.up_bytes[row] = self.down_bytes[row] = 0
        self._steps[row], self._passed[row] = np.iinfo(np.int64).max, 0
        self._patience.forget(row)
        n = len(self.now_s)
        self._late = self._late[(self._late // n != row) & (self._late % n != row)]

    def _away(self, alive: NDArray[np.bool_], meetings: Meetings, expires_s: Seconds) -> NDArray[np.bool_]:
        """(N,) who is still busy when the last that it could meet gives it up; who meets nobody, when half of the others would."""
        last_s = np.full(len(self.now_s), -np.inf)
        np.maximum.at(last_s, meetings.one, expires_s[1])
        np.maximum.at(last_s, meetings.other, expires_s[0])
        if len(meetings):
            last_s[np.isinf(last_s)] = np.median(expires_s)
        else:
            last_s[:] = np.inf
        return alive & (self.now_s > last_s)

    def _ends(self, meetings: Meetings, done: Done, opened: _Opened, initiates: NDArray[np.int64]) -> Seconds:
        """(2, m) when each end of a meeting that takes place is done with it."""
        pace, asks, answers = self.pace, done.initiator, done.responder
        takes_place = ~opened.late
        share = np.bincount(np.concatenate((asks[takes_place], answers[takes_place])), minlength=len(self.now_s))
        share = np.maximum(share, 1)
        up, down = pace.up_bytes_per_s / share, pace.down_bytes_per_s / share
        latency_s = (pace.latency_s[asks] + pace.latency_s[answers]) / 2.0
        out_s = (done.request_bytes + self.frame_bytes) / np.minimum(up[asks], down[answers])
        back_s = (done.response_bytes + self.frame_bytes) / np.minimum(up[answers], down[asks])
        start_s = np.maximum(opened.ready_s[asks], opened.ready_s[answers])
        end_s = start_s + 2.0 * latency_s + out_s + back_s
        ends_s = np.stack((end_s, end_s + latency_s))  # initiator, responder
        places = np.arange(len(asks))
        return np.stack((ends_s[initiates, places], ends_s[1 - initiates, places]))

    def _note_late(self, rows: NDArray[np.int64], knows: NDArray[np.bool_], waits: NDArray[np.bool_]) -> None:
        codes = rows * len(self.now_s) + rows[::-1]
        self._late = np.union1d(np.setdiff1d(self._late, codes[knows]), codes[waits])

    def _count(self, done: Done, late: NDArray[np.bool_]) -> None:
        """Two frames from the initiator (request and proof), one from the responder."""
        out = np.where(late, 0, done.request_bytes + 2 * self.frame_bytes)
        back = np.where(late | (done.response_bytes == 0), 0, done.response_bytes + self.frame_bytes)
        np.add.at(self.up_bytes, done.initiator, out)
        np.add.at(self.up_bytes, done.responder, back)
        np.add.at(self.down_bytes, done.responder, np.where(done.committed, out, 0))
        np.add.at(self.down_bytes, done.initiator, np.where(done.committed, back, 0))
