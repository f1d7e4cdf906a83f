"""Blocks of a model in turns: one is trained and averaged while the others rest.

Shapes: d parameters, m blocks, D parameters of the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from starling.gossip.api import Averaging, Broadcasting, Gathering, Phase, Swapping
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import PlainAveraging
from starling.gossip.spans import Spans, put, spans_of, take, unmatched
from starling.gossip.vector import Layout

UNKNOWN = -1.0
"""The number of the block of a node that has seen no round yet: it trains all, and keeps what it did to the right one."""


@dataclass(frozen=True, slots=True)
class AlternatingState:
    """State of a node."""

    before: Tensor  # (…, d) the model at the end of the last round
    live: Tensor  # (…, 1) number of the block that trains now, or `UNKNOWN`


@dataclass(frozen=True, slots=True)
class AlternatingBlocks:
    """Plain averaging of block t mod m after the t-th phase of local steps, which trained only that block.

    For adapters W + BA: while A rests and is alike at all nodes, W + BA is linear in B, so the average of the B_i is the average of the
    maps, where averages of both at once leave out the covariance of B_i and A_i. An exchange is about the block that was trained: the
    shared vector (D,) is that block, with zeros up to the length of the largest.

    Satisfies `starling.gossip.api.Mixer`. Momentum of a block at rest decays; what it would still move is put back.

    Source: alternating averages of low-rank factors, as RoLoRA, Chen et al. 2024 (arXiv:2409.02346); there with a server.
    """

    blocks: tuple[Spans, ...]  # disjoint, together all of the model
    asynchronous: ClassVar[bool] = False

    @property
    def width(self) -> int:
        """Return D."""
        return max(map(_length, self.blocks))

    @property
    def edge(self) -> Averaging | Swapping | Gathering | Broadcasting:
        """Return plain averaging."""
        return PlainAveraging()

    def start(self, x: Tensor) -> AlternatingState:
        """Start without a block in exchange."""
        return AlternatingState(x.clone(), x.new_full((*x.shape[:-1], 1), UNKNOWN))

    def correct(self, state: AlternatingState, gradient: Tensor) -> tuple[Tensor, AlternatingState]:
        """Return the gradient of the block that trains, zeros elsewhere."""
        if _number(state) < 0:
            return gradient, state
        return self._put(torch.zeros_like(gradient), gradient, self.blocks[_number(state)]), state

    def publish(self, state: AlternatingState, x: Tensor, phase: Phase) -> tuple[Tensor, AlternatingState]:
        """Return the others as they were."""
        live = phase.turn % len(self.blocks)
        return self._put(state.before.clone(), x, self.blocks[live]), _at(state, state.before, live)

    def shared(self, state: AlternatingState, x: Tensor) -> Tensor:
        """Return (…, D), the block of this round."""
        out = x.new_zeros(*x.shape[:-1], self.width)
        part = take(x, self.blocks[max(0, _number(state))])
        out[..., : part.shape[-1]] = part
        return out

    def absorb(self, state: AlternatingState, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, AlternatingState]:
        """Return the averaged block; the next trains once its average is complete."""
        mixed = put(x, shared, self.blocks[phase.turn % len(self.blocks)])
        live = (phase.turn + phase.last) % len(self.blocks)
        return mixed, _at(state, mixed.clone(), live)

    def corrected(self, state: AlternatingState, flows: Tensor) -> AlternatingState:
        """Return the state unchanged: there are no flows."""
        return state

    @staticmethod
    def _put(into: Tensor, values: Tensor, spans: Spans) -> Tensor:
        for span in spans:
            into[..., span] = values[..., span]
        return into


def _length(spans: Spans) -> int:
    return sum(span.stop - span.start for span in spans)


def _number(state: AlternatingState) -> int:
    """Return the round's number, equal in all rows."""
    return int(state.live.reshape(-1)[0])


def _at(state: AlternatingState, before: Tensor, live: int) -> AlternatingState:
    return AlternatingState(before, torch.full_like(state.live, live))


def blocks_of(layout: Layout, patterns: Sequence[str]) -> tuple[Spans, ...]:
    """Return the coordinates of the parameters that match each of `patterns`, as *lora_A*.

    Raises ConfigError: a parameter matches none of them, or several, or a pattern matches nothing.
    """
    for name in layout.names:
        matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        if len(matching) != 1:
            which = "none" if not matching else "several"
            raise ConfigError(
                f"mix.turns: {name} matches {which} of {', '.join(patterns)}, and would {'never' if not matching else 'twice'} be trained; "
                "every parameter must match one"
            )
    blocks = []
    for pattern in patterns:
        block = spans_of(layout, {name for name in layout.names if fnmatchcase(name, pattern)})
        if not block:
            raise ConfigError(unmatched("mix.turns", pattern, layout))
        blocks.append(block)
    return tuple(blocks)


def shared_layout(turns: AlternatingBlocks, layout: Layout) -> Layout:
    """Return the layout of the shared vector: all blocks have the same."""
    return Layout(("block",), ((turns.width,),), layout.dtype)
