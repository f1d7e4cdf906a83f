"""Names in a manifest and codes on the wire, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from gossip.api import Quantizer, Selector
from gossip.catalogue import build
from gossip.compress.quantize import Float32, Float64, Fp16, Int4, Int8, identity
from gossip.compress.select import DriftTopK, Everything, Mask, TopK

SELECTORS: Mapping[str, Callable[..., Selector]] = MappingProxyType(
    {"full": Everything, "mask": Mask, "top_k": TopK, "drift_top_k": DriftTopK}
)
QUANTIZERS: Mapping[str, Callable[..., Quantizer]] = MappingProxyType(
    {"identity": identity, "fp16": Fp16, "int8": Int8, "int4": Int4}
)
BY_CODE: Mapping[int, Quantizer] = MappingProxyType(
    {quantizer.code: quantizer for quantizer in (Float32(), Float64(), Fp16(), Int8(), Int4())}
)


def quantizer(name: str, dtype: torch.dtype) -> Quantizer:
    """The quantizer a manifest names, for vectors of `dtype`.

    Raises:
        ConfigError: unknown name.
    """
    return build("compress", QUANTIZERS, name, {"dtype": dtype} if name == "identity" else {})
