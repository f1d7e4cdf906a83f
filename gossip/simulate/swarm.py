"""A swarm as matrices: thousands of nodes in one process, with the functions that engines and edges call.

    x (N, d)   ── step × K ──▶ publish ──▶ shared (N, D) ── exchanges, batched ──▶ absorb ──▶ x

Every number comes out of the same mixing, selecting, rounding and clipping functions on the same seeds in the same order as in a whole
node, so without faults a round gives the bits of `gossip.simulate.reference`. What faults do is data (`gossip.simulate.fate`), who
meets whom is data (`gossip.simulate.meetings`), and how long it all takes is arithmetic beside it (`gossip.simulate.clocks`).

A run is a loop of the caller's:

    change = churn(faults, seed, round, swarm.alive, swarm.used)
    swarm.change(change)
    meetings = schedule.at(round, swarm.alive.numpy())
    done = swarm.round(phase, step, steps, meetings, fate(faults, seed, round, len(meetings)))

Shapes: N rows, n of them alive, d parameters, D numbers of the shared vector, E numbers kept per edge, m meetings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gossip.api import Mixer, Phase, Selector
from gossip.mix.transaction import Terms
from gossip.simulate.fate import Change, Fate
from gossip.simulate.meetings import Meetings

Correct = Callable[[Tensor], Tensor]
"""Gradients (r, d) -> the directions that the mixing algorithm wants stepped along instead."""
Step = Callable[[Tensor, int, int, Tensor, Correct], Tensor]
"""One local step of some rows: (rows (r,) int64 ascending, round, step in the round, x (r, d), correct) -> new x (r, d).

It calls `correct` once, must not modify x, and may be called for any rows in any order: what it keeps (momentum, say) is its own, by row.
"""


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a round's meetings. All (m,), in their order.

    Args:
        committed: at the initiator, and at the responder unless `unproven`.
        unproven: the responder does not know yet.
        initiator: row.
        responder: row.
        request_bytes: payload from initiator to responder; counted where lost as well.
        response_bytes: payload from responder to initiator; likewise.
    """

    committed: NDArray[np.bool_]
    unproven: NDArray[np.bool_]
    initiator: NDArray[np.int64]
    responder: NDArray[np.int64]
    request_bytes: NDArray[np.int64]
    response_bytes: NDArray[np.int64]


@dataclass(slots=True)
class Swarm:
    """N rows, of which some are alive.

    Args:
        peers: (N) peer id of each row; of two, the lesser initiates.
        x: (N, d) float32 or float64 on any device, the models to start from, all alike where ends swap messages. Moved in place.
        mixer: mixing algorithm.
        terms: codecs and clip.
        selector: coordinates of an exchange.
        seed: the swarm's.
        alive: (N,) bool on the CPU; all by default. Rows that are not alive wait for `join`.
        atomic: a swap of messages happens at both ends or at none. False: each message has its own fate, which only an edge whose
            memory makes up for lost messages (running sums) survives.
        rows_at_once: rows given to `step` at a time; None: all. Some 2^18/d keeps a cheap step within the cache.
    """

    peers: Sequence[str]
    x: Tensor
    mixer: Mixer
    terms: Terms
    selector: Selector
    seed: int
    alive: Tensor
    atomic: bool = True
    rows_at_once: int | None = None
    used: Tensor = field(init=False)
    """(N,) bool: rows that were alive at any time."""
    state: Any = field(init=False)
    """The mixer's, batched: None, or a dataclass of tensors (N, …)."""

    def change(self, change: Change) -> None:
        """Nodes crash, then others join.

        A crash voids the edges of that row: its flows and pending answers are deleted at both ends. Who joins has the model of its
        source, a fresh state and no edges.

        Raises:
            ValueError: a row that crashes is not alive, one that joins is, or its source is not.
        """
        raise NotImplementedError

    def round(
        self,
        phase: Phase,
        step: Step | None,
        steps: int | NDArray[np.int64],
        meetings: Meetings,
        fate: Fate | None = None,
    ) -> Done:
        """Steps pace: local steps of all alive, then all exchanges on the vectors frozen after them, then absorb.

        Args:
            phase: of this round.
            step: one local step; None in a round without.
            steps: K, or for each row (N,) how many it manages this round.
            meetings: among rows alive.
            fate: of the meetings; None: kind.

        Raises:
            ValueError: "not_finite": the swarm has diverged.
        """
        raise NotImplementedError

    def slot(
        self,
        phase: Phase,
        step: Step | None,
        steps: int | NDArray[np.int64],
        visits: Meetings,
        fate: Fate | None = None,
    ) -> Done:
        """Clock pace: local steps of all alive, `publish` after each, then visits one after the other on the live vectors, absorbing each.

        Visits that share no row happen at once: the outcome is that of their order.

        Args:
            phase: of this slot; `local_steps` is between two exchanges of a node.
            step: one local step; None in a slot without.
            steps: K, or for each row (N,): 0 for who does not compute in this slot.
            visits: a pair may come more than once.
            fate: of the visits; None: kind.

        Raises:
            ValueError: "not_finite": the swarm has diverged; or the mixer is not asynchronous.
        """
        raise NotImplementedError

    def consensus_distance(self) -> float:
        """Xi of the models alive: Xi² = (1/n) Σ ‖x_i − x̄‖²."""
        raise NotImplementedError
