"""Rows that lie: what each tells whom instead of its own vector. How they lie is the caller's.

Where messages are gathered a liar tells each receiver something else. Where both ends apply one difference, or swap messages, it does as
if its vector were another, which for one round is one: made for the first of those it meets. Meanwhile it goes on like everybody; what
a swap does to itself it reckons from its true vector.

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

from starling.gossip.api import Quantizer
from starling.node.simulate.matrix.batch import Turn
from starling.node.simulate.matrix.sampler import Chances, through
from starling.node.simulate.matrix.table import Table

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


def sent(messages: Tensor, quantizer: Quantizer, seed: int) -> tuple[Tensor, Tensor]:
    """Messages (r, D) as they arrive, and (r,) bool which do: no node lets in what is not finite, or larger than any model."""
    sound = _sound(messages)
    arrived = torch.zeros_like(messages)
    if bool(sound.any()):
        chances = Chances([seed] * int(sound.sum()))
        arrived[sound] = through(quantizer, messages[sound], chances, range(len(chances.seeds)))
    return arrived, sound & _sound(arrived)


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
        if not bool(sent(told, quantizer, 0)[1]):
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


def _sound(messages: Tensor) -> Tensor:
    return (messages.abs() <= _LARGEST).all(dim=1)
