"""Rows that lie: what each tells whom instead of its own vector. How they lie is the caller's.

Where messages are gathered a liar tells each receiver something else. Where both ends apply one difference, or swap messages, it does as
if its vector were another, which for one round is one: made for the first of those it meets. Meanwhile it goes on like everybody.

Shapes: N rows, D numbers of the shared vector, r receivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.api import Quantizer
from gossip.simulate.chance import Chances, through
from gossip.simulate.rows import Table
from gossip.simulate.turn import Turn

_LARGEST = 1e12  # number in a vector that nodes let in


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A moment at which messages are made, as who sees all of it sees it.

    Args:
        round: counted from 0.
        before: (N, D) vectors before the local steps.
        now: (N, D) after them; only rows alive mean anything.
        alive: (N,) bool.
    """

    round: int
    before: Tensor
    now: Tensor
    alive: NDArray[np.bool_]


class Liars(Protocol):
    """Who lies, and how."""

    @property
    def bad(self) -> NDArray[np.bool_]:
        """(N,) rows that lie."""
        ...

    def tell(self, seen: Seen, liar: int, receivers: Sequence[int]) -> Tensor | None:
        """(r, D) what `liar` tells each of `receivers`; None: the truth."""
        ...


def sent(message: Tensor, quantizer: Quantizer, seed: int) -> Tensor | None:
    """A message (D,) as it arrives; None where a receiver throws it away, as it is not finite or larger than messages may be."""
    if not _sound(message):
        return None
    try:
        arrived = through(quantizer, message[None], Chances([seed]), [0])[0]
    except ValueError:  # a quantizer that cannot say it
        return None
    return arrived if _sound(arrived) else None


def lied(turn: Turn, liars: Liars, seen: Seen, rank: NDArray[np.int64], quantizer: Quantizer) -> Turn:
    """The same meetings, with liars that read other vectors than their own. Whom they tell what cannot be read, loses the exchange.

    Args:
        turn: meetings, of which both ends are named as rows of the swarm.
        liars: who lies.
        seen: what they see.
        rank: (N,) place of each row in the order of peer ids.
        quantizer: of what an initiator sends.
    """
    met = _met(turn, liars.bad)
    if not met:
        return turn
    asks, answers = (Table(each.wide.clone(), each.width) for each in (turn.asks, turn.answers))
    lost = turn.lost.copy()
    for liar, places in sorted(met.items()):
        others = {sum(turn.pairs[place]) - liar: place for place in places}
        told = liars.tell(seen, liar, [min(others, key=lambda row: int(rank[row]))])
        if told is None:
            continue
        if sent(told[0], quantizer, 0) is None:
            lost[places] = True
            continue
        at = int(np.searchsorted(turn.rows, liar))
        asks.rows[at] = answers.rows[at] = told[0]
    return replace(turn, asks=asks, answers=answers, lost=lost)


def _met(turn: Turn, bad: NDArray[np.bool_]) -> dict[int, list[int]]:
    """Liars and the places of their meetings with the honest."""
    met: dict[int, list[int]] = {}
    for place, (one, other) in enumerate(turn.pairs):
        if bad[one] != bad[other]:
            met.setdefault(one if bad[one] else other, []).append(place)
    return met


def _sound(message: Tensor) -> bool:
    return bool((message.abs() <= _LARGEST).all()) and bool(torch.isfinite(message).all())
