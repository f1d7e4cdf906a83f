"""Sparse outer steps: every node sends all others the little of its progress that matters most, and all add the same mean.

Shapes: d parameters, n members of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starling.gossip.api import Phase
from starling.gossip.bounds import NonNegative, Share, parameters
from starling.gossip.compress.catalogue import QUANTIZERS
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase

MOST_MEMBERS = 64
"""Every node receives a message of each other one in every round."""
LISTING_SELECTORS = ("full", "top_k", "chunk_top_k")
MOST_RATIO = 0.25  # of the coordinates: listing more of them costs more than it leaves out
_FINENESS = 256.0  # a limited message is multiplied by a multiple of 1/256, which all machines compute alike


@dataclass(frozen=True, slots=True)
class Anchored:
    """What a node keeps between rounds."""

    anchor: Tensor  # φ (…, d), equal at all nodes; local steps begin there
    owed: Tensor  # e (…, d), progress that was not sent


@parameters
class SparseOuter(MixerBase):
    """With anchors φ that are equal at all nodes, x the model after local steps, and Q the swarm's selector and quantizer:

        e <- decay·e + (x − φ);   send q = Q(e);   e <- e − q;   φ <- φ + (1/n)·Σ_j q_j;   x <- φ

    The memory e acts as an outer momentum for what was not sent. n counts all members of the round; of those from whom nothing came q_j is
    0. The sum is taken in the order of peer ids, so that equal messages give equal bits. Messages longer than `norm_bound` times the
    median length of a round's messages are shortened to that, so that one liar moves φ by at most that share of 1/n.

    For text and for data split evenly. Where data differ much between nodes `pet` needs more bytes and ends better.

    Source: Sarfi et al. 2025, SparseLoCo (arXiv:2508.15706). Deviations: quantizers round to the nearest; the limit of the norm.

    Args:
        decay: β, share of e that is kept from round to round, in [0, 1]: what waits longer than 1/(1 − β) rounds is mostly lost.
        norm_bound: longest message in medians of the round's, 0 is off.
    """

    decay: Share = 0.95
    norm_bound: NonNegative = 3.0

    def __post_init__(self) -> None:
        if 0.0 < self.norm_bound < 1.0:
            raise ValueError(f"norm_bound must be 0, which is off, or >= 1, got {self.norm_bound}")

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Rules for the manifest; warnings."""
        overlay, compress = agreed.overlay, agreed.compress
        if overlay.kind != "complete":
            raise ConfigError(
                f"overlay.kind: sparse_outer sends every message to all members, got {overlay.kind}; try `--set overlay.kind=complete`"
            )
        if overlay.average_every:
            raise ConfigError(
                f"overlay.average_every: anchors are equal already, must be 0 with mix=sparse_outer, got {overlay.average_every}; "
                "try `--set overlay.average_every=0`"
            )
        if compress.select not in LISTING_SELECTORS:
            raise ConfigError(
                f"compress.select: sparse_outer sends the largest coordinates, must be {', '.join(LISTING_SELECTORS)}, "
                f"got {compress.select}; try `--set compress.select=chunk_top_k`"
            )
        if compress.select != "full" and compress.ratio > MOST_RATIO:
            raise ConfigError(
                f"compress.ratio: must be <= {MOST_RATIO:g} with mix=sparse_outer, as listing more coordinates costs more than it saves, "
                f"got {compress.ratio:g}; try `--set compress.ratio=0.05`, or compress.select=full"
            )
        if QUANTIZERS.facts(compress.response, trusted=True).random:
            raise ConfigError(
                f"compress.response: all members must add the same, but {compress.response} rounds by chance; "
                "try `--set compress.response=spread2`"
            )
        return []

    @property
    def edge(self) -> SparseOuter:
        """Itself. Satisfies `starling.gossip.api.Broadcasting`."""
        return self

    def start(self, x: Tensor) -> Anchored:
        """Anchored at x, with nothing owed."""
        return Anchored(x.clone(), torch.zeros_like(x))

    def shared(self, state: Anchored, x: Tensor) -> Tensor:
        """What there is to send: decay·e + (x − φ)."""
        return self.decay * state.owed + (x - state.anchor)

    def settled(self, state: Anchored) -> Tensor:
        """φ (…, d)."""
        return state.anchor

    def advance(
        self, state: Anchored, shared: Tensor, sent: Tensor, messages: Tensor, present: Tensor, members: Sequence[str] = (), round: int = 0
    ) -> tuple[Anchored, Tensor]:  # fmt: skip
        """The round's outer step -> the new state, and (…, n) bool whose messages were shortened.

        Args:
            state: before the round.
            shared: (…, d) what there was to send.
            sent: (…, d) our own message as decoded, 0 if none went out.
            messages: (…, n, d) those of all members in order of peer id, our own among them, finite; undefined where absent.
            present: (…, n) bool.
            members, round: whose messages they are, and of which round: the same to all here.
        """
        factors = shortening(messages, present, self.norm_bound)
        total = torch.zeros_like(shared)
        for place in range(messages.shape[-2]):  # one order of additions everywhere
            total = total + torch.where(
                present[..., place, None], factors[..., place, None] * messages[..., place, :], 0.0
            )
        anchor = state.anchor + total / messages.shape[-2]
        return Anchored(anchor, shared - sent), present & (factors < 1.0)

    def absorb(self, state: Anchored, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Anchored]:
        """Begin at the anchor."""
        return state.anchor, state


def shortening(messages: Tensor, present: Tensor, bound: float) -> Tensor:
    """(…, n) by what each of messages (…, n, D) is multiplied, in [0, 1], so that none is longer than `bound` medians; 0 is off."""
    factors = torch.ones(present.shape, dtype=messages.dtype, device=messages.device)
    if not bound:
        return factors
    each = messages.unbind(dim=-2)  # one at a time: in float64 all would take twice the memory of all messages
    norms = torch.stack([message.double().norm(dim=-1) for message in each], dim=-1)
    counted = present & (norms > 0.0)  # a node that rests sends zeros, and says nothing about the others' lengths
    median = norms.masked_fill(~counted, torch.nan).nanmedian(dim=-1, keepdim=True).values.nan_to_num(0.0)
    longest = bound * median
    shortened = ((longest / norms.clamp(min=1e-300)) * _FINENESS).floor() / _FINENESS
    return torch.where(norms > longest, shortened.to(messages.dtype), factors)
