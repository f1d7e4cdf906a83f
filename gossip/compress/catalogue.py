"""Names in a manifest and codes on the wire, and what they stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch

from gossip.api import Quantizer, Selector
from gossip.catalogue import build
from gossip.compress.quantize import Float32, Float64, Fp16, Int4, Int8, identity
from gossip.compress.select import DriftTopK, Everything, Mask, TopK
from gossip.compress.select_approximate import ChunkTopK, SampledTopK
from gossip.compress.select_random import Cocktail, RandomK
from gossip.errors import ConfigError

SELECTORS: Mapping[str, Callable[..., Selector]] = MappingProxyType(
    {
        "full": Everything,
        "mask": Mask,
        "random_k": RandomK,
        "top_k": TopK,
        "top_k_sampled": SampledTopK,
        "chunk_top_k": ChunkTopK,
        "cocktail": Cocktail,
        "drift_top_k": DriftTopK,
    }
)
QUANTIZERS: Mapping[str, Callable[..., Quantizer]] = MappingProxyType(
    {"identity": identity, "fp16": Fp16, "int8": Int8, "int4": Int4}
)
PLUGIN_CODES = range(128, 256)  # of packages; built-in codes stay below, so that neither can take the other's


def by_code(quantizers: Iterable[Quantizer]) -> Mapping[int, Quantizer]:
    """What each code on the wire stands for.

    Raises:
        ConfigError: two kinds of quantizer share a code.
    """
    found: dict[int, Quantizer] = {}
    for quantizer in quantizers:
        other = found.setdefault(quantizer.code, quantizer)
        if type(other) is not type(quantizer):
            raise ConfigError(
                f"compress: {type(other).__name__} and {type(quantizer).__name__} share code {quantizer.code} on the wire; "
                "name another codec for one of request and response"
            )
    return MappingProxyType(found)


BY_CODE = by_code((Float32(), Float64(), Fp16(), Int8(), Int4()))


def quantizer(
    name: str, dtype: torch.dtype, catalogue: Mapping[str, Callable[..., Quantizer]] = QUANTIZERS
) -> Quantizer:
    """The quantizer a manifest names, for vectors of `dtype`.

    Args:
        name: in the manifest.
        dtype: of the vectors; handed to constructors that ask for it.
        catalogue: QUANTIZERS, or these and what packages add to them.

    Raises:
        ConfigError: unknown name, or one of a package whose code is not in 128 … 255.
    """
    asks = name in catalogue and "dtype" in inspect.signature(catalogue[name]).parameters
    made = build("compress", catalogue, name, {"dtype": dtype} if asks else {})
    if name not in QUANTIZERS and made.code not in PLUGIN_CODES:
        raise ConfigError(
            f"compress: code of {name!r} must be in [128, 255], got {made.code}; its package must choose another"
        )
    return made
