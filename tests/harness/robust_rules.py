"""What tests of combining rules share: every rule once, and how to call one."""

from __future__ import annotations

import torch

from starling.gossip.rng import generator
from starling.robust.catalogue import RULES, rule

B = 2
PARAMS = {
    **{name: {"b": B} for name in ("trimmed_mean", "meamed", "krum", "multi_krum", "mda")},
    **{name: {"b": B} for name in ("cs_plus", "cs_nnm", "clipped_gossip", "nna", "bridge")},
    "bulyan": {"b": 1},
    "centered_clip": {"tau": 3.0, "iterations": 3},
    "norm_bound": {"tau": 1.0},
    "balance": {"gamma": 2.0},
    "ubar": {"share": 0.7},
}  # fmt: skip
K = 7
RULES = {name: rule(name, PARAMS.get(name)) for name in RULES}
MIXED = {
    "nnm+trimmed_mean": rule("trimmed_mean", {"b": B}, "nnm", {"b": B}),
    "nnm+geometric_median": rule("geometric_median", None, "nnm", {"b": B}),
    "nnm+cs_plus": rule("cs_plus", {"b": B}, "nnm", {"b": B}),
    "nnm+ubar": rule("ubar", None, "nnm", {"b": B}),
    "nnm+flag": rule("flag", None, "nnm", {"b": B}),
    "nnm+meamed": rule("meamed", {"b": 1}, "nnm", {"b": 1}),
    "bucketing+median": rule("median", None, "bucketing", {"size": 2, "seed": 5}),
    "bucketing+centered_clip": rule("centered_clip", {"tau": 2.0}, "bucketing", {"size": 2}),
}
EVERY = {**RULES, **MIXED}


def losses(models: torch.Tensor) -> torch.Tensor:
    """Better the nearer to 0."""
    return models.abs().amax(dim=-1)


def example(seed: int, rows: tuple[int, ...] = (), dim: int = 40, k: int = K, dtype=torch.float64):
    """own, told, present, before: gaussian, with steps a third as long as differences."""
    chance = generator(seed)
    before = torch.randn(*rows, dim, generator=chance, dtype=dtype)
    own = before + torch.randn(*rows, dim, generator=chance, dtype=dtype) / 3
    told = torch.randn(*rows, k, dim, generator=chance, dtype=dtype)
    return own, told, torch.ones(*rows, k, dtype=torch.bool), before


def combine(of, own, told, present, before, kept=None):
    """The combined vector."""
    return of.combine(of.start(own) if kept is None else kept, own, told, present, before, losses)[0]
