"""Sparse outer steps: every node sends all others the little of its progress that matters most, and all add the same mean.

Shapes: d parameters, n members of a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starling.gossip.api import Phase
from starling.gossip.bounds import NonNegative, Positive, Share, ShareBelowOne, parameters
from starling.gossip.compress.catalogue import QUANTIZERS
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase
from starling.gossip.vector import finite

MOST_MEMBERS = 64
"""Every node receives a message of each other one in every round."""
LISTING_SELECTORS = ("full", "top_k", "chunk_top_k")
MOST_RATIO = 0.25  # largest share of coordinates: listing more of them costs more than it leaves out
_FINENESS = 256.0  # a limited message is multiplied by a multiple of 1/256, which all machines compute equally


@dataclass(frozen=True, slots=True)
class Anchored:
    """State of a node between rounds."""

    anchor: Tensor  # φ (…, d), equal at all nodes
    owed: Tensor  # e (…, d), progress that was not sent, each node's own


@parameters
class SparseOuter(MixerBase):
    """With outer parameters φ that are equal at all nodes, x the model, and Q the swarm's selector and quantizer, a round is

        x <- φ + residual·e;   s <- x;   local steps change x
        e <- decay·e + (x − s);   send q = Q(e);   e <- e − q;   φ <- φ + outer_lr·(1/n)·Σ_j q_j

    The memory e acts as an outer momentum for what was not sent, and a node's local steps go on from a share of it. Models between rounds
    therefore differ; anchors do not, and are what is evaluated, exported and given to others. n counts all members of the round; of those
    from whom nothing came q_j is 0. The sum is taken in the order of peer ids, so that equal messages give equal bits. Messages longer than
    norm_bound/outer_lr times the median length of a round's messages are shortened to that, so that one liar moves φ by at most
    `norm_bound` median lengths over n, whatever the outer rate.

    For text and for data split evenly. Where data differ much between nodes `pet` needs more bytes and ends better.

    Source: Sarfi et al. 2025, SparseLoCo (arXiv:2508.15706), which is residual 0 with outer_lr 1. Deviations: local steps that go on from a
    share of e; an outer rate above 1; quantizers round to the nearest; the limit of the norm.

    Args:
        decay: β, share of e that is kept from round to round, in [0, 1]: what waits longer than 1/(1 − β) rounds is mostly lost.
        residual: γ, share of e from which a node's local steps go on, in [0, 1).
        outer_lr: λ, by which the mean message is multiplied, > 0.
        norm_bound: how far one message may move φ, in median lengths of the round's messages over n; at least outer_lr, 0 is off.
    """

    decay: Share = 0.95
    residual: ShareBelowOne = 0.3
    outer_lr: Positive = 1.3
    norm_bound: NonNegative = 3.0

    def __post_init__(self) -> None:
        if 0.0 < self.norm_bound < self.outer_lr:
            raise ValueError(
                f"norm_bound must be 0, which is off, or >= outer_lr = {self.outer_lr:g}, got {self.norm_bound:g}; "
                f"try `--set mix.norm_bound={3 * self.outer_lr:g}`"
            )

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return warnings."""
        overlay, compress = agreed.overlay, agreed.compress
        if overlay.kind != "complete":
            raise ConfigError(
                f"overlay.kind: sparse_outer sends every message to all members, got {overlay.kind}; try `--set overlay.kind=complete`"
            )
        if overlay.average_every:
            raise ConfigError(
                f"overlay.average_every: outer parameters are equal already, must be 0 with mix=sparse_outer, got {overlay.average_every}; "
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
                f"compress.response: all members must add the same numbers, but {compress.response} rounds randomly; "
                "try `--set compress.response=spread1`"
            )
        return []

    @property
    def edge(self) -> SparseOuter:
        """Itself. Satisfies `starling.gossip.api.Broadcasting`."""
        return self

    def start(self, x: Tensor) -> Anchored:
        """Return a state with outer parameters x and no residual."""
        return Anchored(x.clone(), torch.zeros_like(x))

    def shared(self, state: Anchored, x: Tensor) -> Tensor:
        """Return what is to be sent: decay·e + (x − s). From φ instead of s residual·e would be counted twice."""
        return self.decay * state.owed + (x - self.begun(state))

    def begun(self, state: Anchored) -> Tensor:
        """Return the model s (…, d) from which local steps of the next round begin, to the same bits whenever it is asked for."""
        return state.anchor + self.residual * state.owed if self.residual else state.anchor

    def settled(self, state: Anchored) -> Tensor:
        """Return φ (…, d)."""
        return state.anchor

    def kept(self, state: Anchored) -> dict[str, Tensor]:
        """Return the residual that was not sent, (…, d)."""
        return {"owed": state.owed}

    def resumed(self, state: Anchored, kept: Mapping[str, Tensor]) -> tuple[Tensor, Anchored]:
        """Restore the residual; zero if none was stored, as in older checkpoints. Raises ValueError: it is another model's."""
        owed = kept.get("owed", state.owed).to(state.owed)
        if owed.shape != state.owed.shape or not finite(owed):
            raise ValueError("holds the unsent residual of another model")
        state = Anchored(state.anchor, owed)
        return self.begun(state), state

    def moved(self, state: Anchored, settled: Tensor) -> Anchored:
        """Return the state with other outer parameters and the same residual."""
        return Anchored(settled, state.owed)

    def advance(
        self, state: Anchored, shared: Tensor, sent: Tensor, messages: Tensor, present: Tensor, members: Sequence[str] = (), round: int = 0
    ) -> tuple[Anchored, Tensor]:
        """Return the round's outer step -> the new state, and (…, n) bool whose messages were shortened.

        Args:
            state: before the round.
            shared: (…, d) what there was to send.
            sent: (…, d) our own message as decoded, 0 if none went out.
            messages: (…, n, d) those of all members in order of peer id, our own among them, finite; undefined where absent.
            present: (…, n) bool.
            members, round: whose messages they are, and of which round: the same to all here.
        """
        factors = shortening(messages, present, self.norm_bound / self.outer_lr)
        total = torch.zeros_like(shared)
        for place in range(messages.shape[-2]):  # all nodes add in the same order
            total = total + torch.where(present[..., place, None], factors[..., place, None] * messages[..., place, :], 0.0)
        anchor = state.anchor + self.outer_lr * total / messages.shape[-2]
        return Anchored(anchor, shared - sent), present & (factors < 1.0)

    def absorb(self, state: Anchored, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Anchored]:
        """Continue from the outer parameters plus a share of the residual."""
        return self.begun(state), state


def shortening(messages: Tensor, present: Tensor, bound: float) -> Tensor:
    """Return (…, n) by what each of messages (…, n, D) is multiplied, in [0, 1], so that none is longer than `bound` medians; 0 is off."""
    factors = torch.ones(present.shape, dtype=messages.dtype, device=messages.device)
    if not bound:
        return factors
    each = messages.unbind(dim=-2)  # one at a time, since all in float64 would take twice the memory of all messages
    norms = torch.stack([message.double().norm(dim=-1) for message in each], dim=-1)
    counted = present & (norms > 0.0)  # a resting node sends zeros, which must not lower the others' median length
    median = norms.masked_fill(~counted, torch.nan).nanmedian(dim=-1, keepdim=True).values.nan_to_num(0.0)
    longest = bound * median
    shortened = ((longest / norms.clamp(min=1e-300)) * _FINENESS).floor() / _FINENESS
    return torch.where(norms > longest, shortened.to(messages.dtype), factors)
