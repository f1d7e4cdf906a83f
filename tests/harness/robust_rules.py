"""Shared by tests of combining rules: every rule once, and how to call one."""

import torch

from starling.gossip.rng import generator
from starling.robust.catalogue import RULES as CATALOGUE
from starling.robust.catalogue import rule

B = 2
PARAMS = {
    **{name: {"f": B} for name in ("trimmed_mean", "meamed", "krum", "multi_krum", "mda")},
    **{name: {"f": B} for name in ("cs_plus", "cs_nnm", "clipped_gossip", "nna", "bridge")},
    "bulyan": {"f": 1},
    "centered_clip": {"tau": 3.0, "iterations": 3},
    "norm_bound": {"tau": 1.0},
    "balance": {"gamma": 2.0},
    "ubar": {"share": 0.7},
}
K = 7
RULES = {name: rule(name, PARAMS.get(name)) for name in CATALOGUE}
MIXED = {
    "nnm+trimmed_mean": rule("trimmed_mean", {"f": B}, "nnm", {"f": B}),
    "nnm+geometric_median": rule("geometric_median", None, "nnm", {"f": B}),
    "nnm+cs_plus": rule("cs_plus", {"f": B}, "nnm", {"f": B}),
    "nnm+ubar": rule("ubar", None, "nnm", {"f": B}),
    "nnm+flag": rule("flag", None, "nnm", {"f": B}),
    "nnm+meamed": rule("meamed", {"f": 1}, "nnm", {"f": 1}),
    "bucketing+median": rule("median", None, "bucketing", {"bucket": 2, "seed": 5}),
    "bucketing+centered_clip": rule("centered_clip", {"tau": 2.0}, "bucketing", {"bucket": 2}),
}
EVERY = {**RULES, **MIXED}


def tolerated(name: str, k: int = K) -> int:
    """Return the largest number of Byzantine vectors among k that a rule is set for and its facts allow; for wrapped rules the smaller."""
    first, _, last = name.rpartition("+")
    most = {"bulyan": 1, "nnm+meamed": 1}.get(name, B if first == "nnm" or "f" in PARAMS.get(last, {}) else k - 1)
    peers = -(-k // 2) if first == "bucketing" else k
    return max(f for f in range(most + 1) if CATALOGUE.facts(last).least_peers(f) <= peers)


def losses(models: torch.Tensor) -> torch.Tensor:
    """Return losses that are smaller the nearer models are to 0."""
    return models.abs().amax(dim=-1)


def example(seed: int, rows: tuple[int, ...] = (), dim: int = 40, k: int = K, dtype=torch.float64):
    """Return own, received, present, before: gaussian, with steps a third as long as differences."""
    chance = generator(seed)
    before = torch.randn(*rows, dim, generator=chance, dtype=dtype)
    own = before + torch.randn(*rows, dim, generator=chance, dtype=dtype) / 3
    received = torch.randn(*rows, k, dim, generator=chance, dtype=dtype)
    return own, received, torch.ones(*rows, k, dtype=torch.bool), before


def combine(of, own, received, present, before, kept=None):
    """Return the combined vector."""
    return of.combine(of.start(own) if kept is None else kept, own, received, present, before, losses)[0]
