"""Seeds and scalars: each node sends how much its loss changed along directions that all can draw, and all make the same steps.

Shapes: d parameters, K local steps of a round, n members of a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from starling.gossip.api import Phase
from starling.gossip.bounds import AtLeastOne, NonNegative, Positive, parameters
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase
from starling.gossip.mix.sparse_outer import shortening
from starling.gossip.seeds import derive

MOST_NUMBERS = 10**8
"""Members times parameters: what every node draws for each local step."""


@dataclass(frozen=True, slots=True)
class SeedsState:
    """State of a node between rounds."""

    anchor: Tensor  # φ (…, d), equal at all nodes; local steps begin there
    scalars: Tensor  # (…, K) scalars of this round's local steps, 0 for those not done
    done: Tensor  # (…, 1) number of local steps done


@parameters
class Seeds(MixerBase):
    """With u(i, t, k) ∈ {−1, 1}^d of local step k of node i in round t, drawn by all from the swarm's seed, and f the loss of a batch:

        local step   p = (f(x + εu) − f(x − εu))/2ε,   x <- x − lr·p·u;   s_k = lr·p
        round        all are sent s (K numbers, a byte each);   φ <- φ − (1/n) Σ_i Σ_k s_ik u(i, t, k);   x <- φ

    No gradient is computed, and a round costs K bytes a node whatever the model's size: for models that were trained before (`task.start`),
    or few parameters. Additions are exact products of ±1 in the order of peer ids, so that equal messages give equal bits on all machines.
    A vector of scalars longer than `norm_bound` times the median is shortened to that.

    Source: Zelikman et al. 2023, Just One Byte (arXiv:2306.09360); SPSA, Spall 1992. Deviations: signs instead of normal directions;
    local steps between messages; a scale a message of 64 scalars, the largest of them, instead of a shared one.

    Args:
        epsilon: ε, half the distance of the two losses, in units of parameters, > 0.
        norm_bound: longest vector of scalars in medians of the round's, 0 is off.
        seed: of the swarm.
        steps: K.
    """

    epsilon: Positive = 1e-3
    norm_bound: NonNegative = 3.0
    seed: int = 0
    steps: AtLeastOne = 1

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return warnings."""
        overlay, compress, optimizer = agreed.overlay, agreed.compress, agreed.optimizer
        if overlay.kind != "complete" or overlay.average_every:
            raise ConfigError(
                f"overlay.kind: seeds sends every scalar to all members, must be complete without average_every, got {overlay.kind}; "
                "try `--set overlay.kind=complete --set overlay.average_every=0`"
            )
        if compress.select != "full" or compress.response not in {"int8_nearest", "identity"}:
            raise ConfigError(
                "compress.response: all members must add the same scalars, all of them, must be int8_nearest (a byte each) or identity "
                f"with select = full, got {compress.response} and {compress.select}; "
                "try `--set compress.select=full --set compress.response=int8_nearest`"
            )
        if optimizer.kind != "sgd" or optimizer.momentum or optimizer.weight_decay or optimizer.clip_norm is not None:
            raise ConfigError(
                "optimizer.kind: a step of seeds is a scalar along a drawn direction, for which there is no momentum, decay or clip_norm: "
                "must be plain sgd; try `--set optimizer.kind=sgd --set optimizer.momentum=0 --set optimizer.weight_decay=0`"
            )
        return []

    @property
    def edge(self) -> Seeds:
        """Itself. Satisfies `starling.gossip.api.Broadcasting`."""
        return self

    def start(self, x: Tensor) -> SeedsState:
        """Return a state with outer parameters x and no scalars."""
        return self._from(x)

    def correct(self, state: SeedsState, gradient: Tensor) -> tuple[Tensor, SeedsState]:
        """Record the "gradient", here lr·p (…, 1), and return it."""
        place = torch.arange(self.steps, device=gradient.device) == state.done
        return gradient, SeedsState(state.anchor, torch.where(place, gradient, state.scalars), state.done + 1)

    def shared(self, state: SeedsState, x: Tensor) -> Tensor:
        """Return the scalars (…, K) of this round."""
        return state.scalars

    def settled(self, state: SeedsState) -> Tensor:
        """Return φ (…, d)."""
        return state.anchor

    def kept(self, state: SeedsState) -> dict[str, Tensor]:
        """Return nothing: scalars are of one round."""
        return {}

    def resumed(self, state: SeedsState, kept: Mapping[str, Tensor]) -> tuple[Tensor, SeedsState]:
        """Start at the outer parameters."""
        return state.anchor, state

    def moved(self, state: SeedsState, settled: Tensor) -> SeedsState:
        """Return the state with other outer parameters; this round's scalars stay."""
        return SeedsState(settled, state.scalars, state.done)

    def advance(
        self, state: SeedsState, shared: Tensor, sent: Tensor, messages: Tensor, present: Tensor, members: Sequence[str], round: int
    ) -> tuple[SeedsState, Tensor]:
        """Do `Broadcasting.advance` with messages (…, n, K)."""
        factors = shortening(messages, present, self.norm_bound)
        anchor, count = state.anchor.clone(), messages.shape[-2]
        for place, peer in enumerate(members):
            told = torch.where(present[..., place, None], factors[..., place, None] * messages[..., place, :], 0.0) / count
            if bool(told.any()):
                for step in range(self.steps):
                    anchor -= told[..., step, None] * self.direction(peer, round, step, anchor)
        return self._from(anchor), present & (factors < 1.0)

    def absorb(self, state: SeedsState, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, SeedsState]:
        """Continue from the outer parameters."""
        return state.anchor, self._from(state.anchor)

    def direction(self, peer: str, round: int, step: int, like: Tensor) -> Tensor:
        """U (d,) of a local step of a node, of the dtype and on the device of `like` (…, d)."""
        dim = like.shape[-1]
        words = np.random.Philox(key=derive(self.seed, "direction", peer, round, step)).random_raw((dim + 63) // 64)
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=dim)
        return torch.from_numpy(bits).to(like).mul_(2.0).sub_(1.0)

    def _from(self, anchor: Tensor) -> SeedsState:
        return SeedsState(anchor.clone(), anchor.new_zeros(*anchor.shape[:-1], self.steps), anchor.new_zeros(*anchor.shape[:-1], 1))


def slope(losses: Tensor, epsilon: float) -> Tensor:
    """Losses (…, 2) at x + εu and x − εu -> p (…, 1); not a number where they are not."""
    return (losses[..., :1] - losses[..., 1:]) / (2.0 * epsilon)
