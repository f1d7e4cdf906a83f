"""Outer steps: many local steps, then one optimiser step of the swarm on their displacement.

Shapes: d parameters, F fragments, D = ⌈d/F⌉ coordinates that are averaged at a time.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from starling.gossip.api import Phase
from starling.gossip.bounds import Count, NonNegative, Positive, ShareBelowOne, Steps, parameters
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase
from starling.gossip.overlay.periodic import Periodic
from starling.gossip.overlay.static import Alone

FEWEST = 50  # outer steps that a run with outer momentum should have: five times as many as DiLoCo's momentum of .9 remembers, 1/(1 − .9)
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Anchored:
    """State of a node's outer optimiser."""

    anchor: Tensor  # φ (…, d), the model after the last outer step
    momentum: Tensor  # m (…, d), in units of the model
    mean: Tensor  # (…, D) models being averaged
    mean_anchor: Tensor  # (…, D) outer parameters being averaged
    own: Tensor  # (…, D) the own model when that began
    turn: Tensor  # (…, 1) number of the averaging, as a whole number


@parameters
class Outer(MixerBase):
    """Local SGD and its descendants by parameters. With Δ = mean model − outer parameters, over the averaged nodes:

        push = lr·Δ/Λ − pull·(φ − mean anchor);   m <- μ·m + push;   φ <- φ + (push + μ·m, or m without nesterov)

    and the model becomes keep·(model) + (1 − keep)·φ. Averages are of copies taken when the averaging began, so local steps may
    go on meanwhile; an overlay with global averages makes the mean exact, any other makes it the mean with neighbors.

        DiLoCo            lr .7, momentum .9, nesterov, exact averages             Douillard et al. 2023 (arXiv:2311.08105)
        Streaming DiLoCo  the same in fragments, averages that overlap, keep .5    Douillard et al. 2025 (arXiv:2501.18512)
        NoLoCo            lr .7, momentum .5, pull .3 … 1, one peer a round        Kolehmainen et al. 2025 (arXiv:2506.10911)
        CO2               overlap, penalty and clip above 0                        Sun et al. 2024 (arXiv:2401.16265)
        FedAvg            lr 1, momentum 0, exact averages                         McMahan et al. 2017 (arXiv:1602.05629)

    CO2 names no constants for its penalty; ours is Λ = 1 + penalty·‖model now − model then‖/‖Δ‖, at most what the overlap undid.
    With neighbors instead of exact averages large momentum drives anchors apart: `disagreement_factor` has the bound.

    Args:
        outer_lr: outer rate, > 0.
        outer_momentum: in [0, 1).
        nesterov: look ahead.
        pull: consensus step of the anchors, >= 0; 0 where averages are exact, which spares half of the bytes.
        fragments: F, coordinates f, f + F, f + 2F … are averaged together in turn f, >= 1.
        keep: share of the own model that an outer step leaves, in [0, 1).
        penalty: weight of staleness, >= 0.
        outer_clip: bound of every |m| coordinate, in units of the model; 0 is off.
        plain_averages: first averagings, >= 0, after which the model is the mean itself: outer steps begin after them, without momentum.
    """

    outer_lr: Positive = 0.7
    outer_momentum: ShareBelowOne = 0.9
    nesterov: bool = True
    pull: NonNegative = 0.0
    fragments: Steps = 1
    keep: ShareBelowOne = 0.0
    penalty: NonNegative = 0.0
    outer_clip: NonNegative = 0.0
    plain_averages: Count = 0

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return warnings."""
        mix, overlay = agreed.mix, agreed.overlay
        warnings = [] if mix.outer_momentum == 0.0 else _needs_of_momentum(agreed)
        if overlay.average_every:
            if overlay.kind != "alone":
                raise ConfigError(
                    f"overlay.kind: outer steps average by overlay.average_every, with no exchanges between, got {overlay.kind}; "
                    "try `--set overlay.kind=alone`"
                )
            return warnings
        pull = mix.pull or mix.outer_lr
        factor = disagreement_factor(mix.outer_momentum, pull, nesterov=mix.nesterov)
        if factor >= 1.0:
            raise ConfigError(
                f"mix.outer_momentum: {mix.outer_momentum:g} with {'mix.pull' if mix.pull else 'mix.outer_lr'} = {pull:g} and averages of "
                f"pairs multiplies the variance of the nodes by {factor:.3g} a round, must be < 1 (docs/algorithms.md, outer steps); "
                "try `--set mix.outer_momentum=0.5`, or exact averages: overlay=alone, average_every=1"
            )
        return warnings

    def start(self, x: Tensor) -> Anchored:
        """Return the state with outer parameters x."""
        first = self._cut(x, 0)
        turn = torch.zeros((*x.shape[:-1], 1), dtype=torch.int64, device=x.device)
        return Anchored(x.clone(), torch.zeros_like(x), first, first.clone(), first.clone(), turn)

    def publish(self, state: Anchored, x: Tensor, phase: Phase) -> tuple[Tensor, Anchored]:
        """At the start of an averaging, copy its fragment."""
        if not phase.first:
            return x, state
        own = self._cut(x, phase.turn)
        return x, replace(
            state, mean=own, mean_anchor=self._cut(state.anchor, phase.turn), own=own.clone(), turn=torch.full_like(state.turn, phase.turn)
        )

    def shared(self, state: Anchored, x: Tensor) -> Tensor:
        """Return the copies as averaged so far."""
        return torch.cat((state.mean, state.mean_anchor), dim=-1) if self.pull else state.mean

    def absorb(self, state: Anchored, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Anchored]:
        """Keep the averages; the last one is followed by the outer step."""
        d = state.mean.shape[-1]
        state = replace(state, mean=shared[..., :d].clone())
        if self.pull:
            state = replace(state, mean_anchor=shared[..., d:].clone())
        return self._step(state, x) if phase.last else (x, state)

    def _step(self, state: Anchored, x: Tensor) -> tuple[Tensor, Anchored]:
        turn = int(state.turn.reshape(-1)[0])
        if turn < self.plain_averages:
            return self._put(x, state.mean, turn), replace(state, anchor=self._put(state.anchor, state.mean, turn))
        anchor, momentum, model = (self._cut(vector, turn) for vector in (state.anchor, state.momentum, x))
        delta = state.mean - state.mean_anchor
        if self.penalty:
            drift = torch.linalg.vector_norm(model - state.own, dim=-1, keepdim=True)
            length = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
            delta = delta / (1.0 + self.penalty * drift / (length + _TINY))
        push = self.outer_lr * delta - self.pull * (anchor - state.mean_anchor)
        momentum = self.outer_momentum * momentum + push
        if self.outer_clip:
            momentum = momentum.clamp(-self.outer_clip, self.outer_clip)
        anchor = anchor + (push + self.outer_momentum * momentum if self.nesterov else momentum)
        model = self.keep * model + (1.0 - self.keep) * anchor
        return self._put(x, model, turn), replace(
            state, anchor=self._put(state.anchor, anchor, turn), momentum=self._put(state.momentum, momentum, turn)
        )

    def _cut(self, x: Tensor, turn: int) -> Tensor:
        """Map (…, d) to (…, D): every F-th coordinate from turn mod F on, zeros where there is none."""
        return self._table(x)[..., turn % self.fragments].clone()

    def _put(self, x: Tensor, values: Tensor, turn: int) -> Tensor:
        table = self._table(x).clone()
        table[..., turn % self.fragments] = values
        return table.flatten(-2)[..., : x.shape[-1]].clone()

    def _table(self, x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % self.fragments))
        return padded.reshape(*padded.shape[:-1], -1, self.fragments)


def _needs_of_momentum(agreed: Any) -> list[str]:
    """Return warnings of a manifest with outer momentum, which needs a falling rate and enough rounds."""
    mix, overlay, rounds, rates = agreed.mix, agreed.overlay, agreed.pace.rounds, agreed.optimizer
    found = []
    if rates.schedule == "constant" or not rounds:
        found.append(
            f"mix.outer_momentum: {mix.outer_momentum:g} multiplies what local steps at a constant rate wander (docs/reproductions/"
            "local-steps.md); try `--set optimizer.schedule=cosine --set optimizer.warmup=0.1`"
            + ("" if rounds else " and an end, pace.rounds")
        )
    cycle = agreed.pace.gossips
    if overlay.average_every:
        sweeps = Periodic(Alone(), overlay.average_every, overlay.average_k, overlap=overlay.overlap)
        cycle = sweeps.cycle(agreed.pace.quorum)
    steps = rounds // cycle - mix.plain_averages
    if rounds and steps < FEWEST:
        found.append(
            f"pace.rounds: {rounds} make at most {max(0, steps)} outer steps, fewer than the {FEWEST} that outer momentum should have "
            f"(docs/reproductions/local-steps.md); try `--set pace.rounds={cycle * (FEWEST + mix.plain_averages)}`, or no momentum"
        )
    return found


def disagreement_factor(momentum: float, pull: float, *, nesterov: bool = False) -> float:
    """Return the long-run factor of the outer parameters' variance per round of pairwise outer steps; below 1 they converge. Torch-free.

    Disagreement of anchors without gradients, over uniformly random pairs of many nodes: with z_i = (φ_i, m_i) and a partner j

        push = −(g/2)·(φ_i − φ_j);   m' = a·m + push;   φ' = φ + m', or φ + push + a·m' with nesterov

    so z_i' = P·z_i + q·φ_j and the covariance of independent, equally distributed nodes becomes P·C·Pᵀ + q·qᵀ·C_φφ. The factor is the
    spectral radius of that map. Own calculation; heavy-ball values agree with the ranges measured for NoLoCo (arXiv:2506.10911).

    Args:
        momentum: a, in [0, 1).
        pull: g, >= 0.
        nesterov: look ahead.
    """
    a, half = momentum, pull / 2.0
    m = np.array([-half, a])  # m' as a combination of (φ, m); + half · φ_j
    push = np.array([-half, 0.0])
    phi = np.array([1.0, 0.0]) + (push + a * m if nesterov else m)
    step = np.array([phi, m])
    partner = np.array([half + a * half if nesterov else half, half])
    covariance = np.kron(step, step)
    covariance[:, 0] += np.kron(partner, partner)
    return float(np.abs(np.linalg.eigvals(covariance)).max())
