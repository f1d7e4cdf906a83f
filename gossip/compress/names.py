"""What a manifest may name, without what it stands for: the daemon and the command line check names and import no torch."""

from __future__ import annotations

from types import MappingProxyType

SELECTORS = (
    "full",
    "mask",
    "random_k",
    "top_k",
    "top_k_sampled",
    "chunk_top_k",
    "cocktail",
    "drift_top_k",
    "low_rank",
    "layered",
    "dct_top_k",
)
QUANTIZERS = (
    "identity", "fp16", "bf16",
    *(f"int{bits}{rounding}" for rounding in ("", "_nearest") for bits in (8, 6, 5, 4, 3, 2)),
    *(f"qsgd{levels}" for levels in (127, 31, 15, 7, 3, 1)),
    "sign", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "fp4_e3m0",
)  # fmt: skip
EXPANSIVE = MappingProxyType({"int2": "int2_nearest", "qsgd3": "qsgd7", "qsgd1": "sign"})
"""Codecs whose expected squared error may exceed ‖x‖², which no difference or feedback loop stands, and what to take instead."""
CHANCY = frozenset(
    {
        "budget", "mask", "random_k", "cocktail", "top_k_sampled", "low_rank",
        *(f"int{bits}" for bits in (8, 6, 5, 4, 3, 2)), *(f"qsgd{levels}" for levels in (127, 31, 15, 7, 3, 1)),
    }
)  # fmt: skip
"""Selectors and codecs that draw, so that what a node tells differs from peer to peer."""
