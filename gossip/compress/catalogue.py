"""Names in a manifest and codes on the wire, and what they stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch

from starling.gossip.api import Quantizer, Selector
from starling.gossip.catalogue import build
from starling.gossip.compress.quantize import Bf16, Float32, Float64, Fp16, identity, integer, minifloat, qsgd, sign
from starling.gossip.compress.quantize.minifloats import FORMATS
from starling.gossip.compress.select.approximate import ChunkTopK, SampledTopK
from starling.gossip.compress.select.coordinates import DriftTopK, Everything, Mask, TopK
from starling.gossip.compress.select.dct import DctTopK
from starling.gossip.compress.select.layers import Layered
from starling.gossip.compress.select.low_rank import LowRank
from starling.gossip.compress.select.random_k import Cocktail, RandomK
from starling.gossip.errors import ConfigError

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
        "low_rank": LowRank,
        "layered": Layered,
        "dct_top_k": DctTopK,
    }
)
QUANTIZERS: Mapping[str, Callable[..., Quantizer]] = MappingProxyType(
    {
        "identity": identity,
        "fp16": Fp16,
        "bf16": Bf16,
        **{f"int{bits}": partial(integer, bits) for bits in (8, 6, 5, 4, 3, 2)},
        **{f"int{bits}_nearest": partial(integer, bits, nearest=True) for bits in (8, 6, 5, 4, 3, 2)},
        **{f"qsgd{levels}": partial(qsgd, levels) for levels in (127, 31, 15, 7, 3, 1)},
        "sign": sign,
        **{name: partial(minifloat, name) for name in FORMATS},
    }
)
PLUGIN_CODES = range(128, 256)  # of packages; built-in codes stay below, so that neither can take the other's


def by_code(named: Mapping[str, Quantizer]) -> Mapping[int, Quantizer]:
    """What each code on the wire stands for.

    Args:
        named: quantizers by the names a person knows them by.

    Raises:
        ConfigError: two of different types share a code. Of one type they may: those that only round differently decode alike.
    """
    names: dict[int, str] = {}
    for name, quantizer in named.items():
        other = names.setdefault(quantizer.code, name)
        if type(named[other]) is not type(quantizer):
            raise ConfigError(
                f"compress: {other!r} and {name!r} have the same code {quantizer.code} on the wire; name another for one of them"
            )
    return MappingProxyType({code: named[name] for code, name in names.items()})


BY_CODE = by_code(
    {"float32": Float32(), "float64": Float64()}
    | {name: make() for name, make in QUANTIZERS.items() if name != "identity"}
)


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
