"""Selectors and quantizers by name, and quantizers by their code on the wire. Importing it loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from starling.gossip.api import Quantizer, Selector
from starling.gossip.catalogue import Catalogue, Entry
from starling.gossip.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class SelectorFacts:
    """Facts of a selector, known without importing it."""

    random: bool = False  # it selects other coordinates for each peer
    # it depends on the vector's values, and if both ends move by their difference, on the peer's last known values
    compares: bool = True
    wishes: bool = False  # half of an exchange's coordinates are those for which the responder asked in the last one


@dataclass(frozen=True, slots=True)
class QuantizerFacts:
    """Facts of a quantizer, known without importing it."""

    random: bool = False  # rounds randomly, differently for each peer
    instead: str = ""  # the alternative, where the expected squared error may exceed ‖x‖² and so diverge in a difference or feedback loop
    bits: float = 0.0  # bits of a value on the wire with its share of a scale, given float32; 0: unknown


_CODECS = "starling.gossip.compress.quantize"
_BLIND = SelectorFacts(random=True, compares=False)
_RANDOM = SelectorFacts(random=True)
_INSTEAD = {"int2": "int2_nearest", "qsgd3": "qsgd7", "qsgd1": "sign"}
_SCALE = 0.25  # bits: a float32 for each 128 values
_LEVELS = {127: 8, 31: 6, 15: 5, 7: 4, 3: 3, 1: 2}  # bits of a value of qsgd
SELECTORS: Catalogue[Selector, SelectorFacts] = Catalogue(
    "compress.select",
    "starling.selectors",
    {
        "full": Entry("starling.gossip.compress.select.coordinates:Everything", SelectorFacts(compares=False)),
        "mask": Entry("starling.gossip.compress.select.coordinates:Mask", _BLIND),
        "fragment": Entry("starling.gossip.compress.select.coordinates:Fragments", _BLIND),
        "random_k": Entry("starling.gossip.compress.select.coordinates:RandomK", _BLIND),
        "top_k": Entry("starling.gossip.compress.select.coordinates:TopK", SelectorFacts()),
        "top_k_sampled": Entry("starling.gossip.compress.select.approximate:SampledTopK", _RANDOM),
        "chunk_top_k": Entry("starling.gossip.compress.select.approximate:ChunkTopK", SelectorFacts()),
        "cocktail": Entry("starling.gossip.compress.select.coordinates:Cocktail", _RANDOM),
        "drift_top_k": Entry("starling.gossip.compress.select.coordinates:TopK", SelectorFacts(wishes=True)),
        "low_rank": Entry("starling.gossip.compress.select.low_rank:LowRank", _RANDOM),
        "layered": Entry(
            "starling.gossip.compress.select.layers:Layered", SelectorFacts(), keys="starling.gossip.compress.budget:LayeredBudget"
        ),
        "dct_top_k": Entry("starling.gossip.compress.select.dct:DctTopK", SelectorFacts()),
    },
    SelectorFacts(),
    members=("select",),
    supplied=("matrices", "layers", "quantizer"),
)
BUDGET = "budget"  # value of compress.select: not a selector but a rule that chooses one, `node.engine.compression`
SELECTIONS: Catalogue[Selector, SelectorFacts] = SELECTORS.extended(
    {BUDGET: Entry("starling.gossip.compress.select.coordinates:Mask", _BLIND, keys="starling.gossip.compress.budget:Budget")}
)
"""What compress.select may name."""
QUANTIZERS: Catalogue[Quantizer, QuantizerFacts] = Catalogue(
    "compress.response",
    "starling.quantizers",
    {
        "identity": Entry(f"{_CODECS}.floats:identity", QuantizerFacts(bits=32)),
        "fp16": Entry(f"{_CODECS}.floats:Fp16", QuantizerFacts(bits=16)),
        "bf16": Entry(f"{_CODECS}.floats:Bf16", QuantizerFacts(bits=16), maturity="experimental"),
        **{
            f"int{bits}": Entry(
                f"{_CODECS}.kinds:integer", QuantizerFacts(True, _INSTEAD.get(f"int{bits}", ""), bits + _SCALE), {"bits": bits}
            )
            for bits in (8, 6, 5, 4, 3, 2)
        },
        **{
            f"int{bits}_nearest": Entry(f"{_CODECS}.kinds:integer", QuantizerFacts(bits=bits + _SCALE), {"bits": bits, "nearest": True})
            for bits in (8, 6, 5, 4, 3, 2)
        },
        **{
            f"qsgd{levels}": Entry(
                f"{_CODECS}.kinds:qsgd", QuantizerFacts(True, _INSTEAD.get(f"qsgd{levels}", ""), bits + _SCALE), {"levels": levels}
            )
            for levels, bits in _LEVELS.items()
        },
        "sign": Entry(f"{_CODECS}.kinds:sign", QuantizerFacts(bits=1 + _SCALE)),
        "spread1": Entry(f"{_CODECS}.kinds:spread1", QuantizerFacts(bits=1 + _SCALE / 4)),
        "spread2": Entry(f"{_CODECS}.spread:Spread2", QuantizerFacts(bits=2 + _SCALE / 2)),
        **{
            name: Entry(f"{_CODECS}.kinds:minifloat", QuantizerFacts(bits=bits + _SCALE), {"format": name})
            for name, bits in (("fp8_e4m3", 8), ("fp8_e5m2", 8), ("fp4_e2m1", 4), ("fp4_e3m0", 4))
        },
        **{
            f"{name}_x{steps}": Entry(
                f"{_CODECS}.kinds:multi_step",
                QuantizerFacts(random, bits=steps * (bits + _SCALE)),
                {"of": name, "steps": steps},
                maturity="experimental",
            )
            for name, random, bits in (("sign", False, 1), ("int2_nearest", False, 2), ("int3", True, 3), ("int4", True, 4))
            for steps in (2, 3)
        },
    },
    QuantizerFacts(),
    members=("code", "encode", "decode", "size"),
)
PLUGIN_CODES = range(128, 256)  # codes of installed packages; built-in codes are smaller, so that neither collides


def by_code(named: Mapping[str, Quantizer]) -> Mapping[int, Quantizer]:
    """Return quantizers by their code on the wire.

    Raises ConfigError: two of different types share a code. Of one type they may: those that only round differently decode alike.
    """
    names: dict[int, str] = {}
    for name, quantizer in named.items():
        other = names.setdefault(quantizer.code, name)
        if type(named[other]) is not type(quantizer):
            raise ConfigError(
                f"compress: {other!r} and {name!r} have the same code {quantizer.code} on the wire; name another for one of them"
            )
    return MappingProxyType({code: named[name] for code, name in names.items()})


def quantizer(name: str, dtype: torch.dtype, *, trusted: bool = False) -> Quantizer:
    """Return the quantizer a manifest names, for vectors of `dtype`; `trusted`: the machine's owner agrees to import "module:Class".

    Raises ConfigError: unknown name, or one of a package whose code is not in 128 … 255.
    """
    asks = "dtype" in QUANTIZERS.parameters(name, trusted=trusted)
    made = QUANTIZERS.build("compress", name, {"dtype": dtype} if asks else {}, trusted=trusted)
    if name not in QUANTIZERS.built_in and made.code not in PLUGIN_CODES:
        raise ConfigError(f"compress: code of {name!r} must be in [128, 255], got {made.code}; its package must choose another")
    return made
