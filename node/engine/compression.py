"""Make codecs and selectors from a manifest's section, those of installed packages included."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from starling.gossip.api import Quantizer, Selector
from starling.gossip.catalogue import construct
from starling.gossip.compress.budget import Effort, ExtraSize, nothing, plan
from starling.gossip.compress.catalogue import BUDGET, SELECTIONS, SELECTORS, SelectorFacts, by_code, quantizer
from starling.gossip.compress.header import TRAILER
from starling.gossip.compress.quantize.kinds import integer
from starling.gossip.compress.select.coordinates import Mask, kept
from starling.gossip.compress.select.dct import DctTopK
from starling.gossip.compress.select.layers import layers_of, listed_size
from starling.gossip.compress.select.low_rank import LowRank, matrices_of
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.kinds import EdgeKind
from starling.gossip.mix.memories import MemoryCodec
from starling.gossip.mix.moments import Moments, averages_memories
from starling.gossip.vector import Layout
from starling.gossip.wire.schema import MAX_PAYLOAD_BYTES
from starling.node.config.schema import CompressSection, Manifest
from starling.robust.clip import clip

Selection = Callable[[int, int], Selector]  # (budget of an exchange in bytes or 0, D) -> what selects its coordinates
MEMORY_BLOCK = 32  # numbers of m that share a scale: orthogonalisation amplifies the noise of codes
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def parts(layout: Layout, dim: int) -> Mapping[str, Any]:
    """Return facts for selectors about a shared vector (dim,) that consists of whole models of `layout`, side by side; else none."""
    copies, rest = divmod(dim, layout.dim)
    if rest:
        return _NOTHING
    offsets = [copy * layout.dim for copy in range(copies)]
    return {
        "matrices": tuple(replace(m, offset=m.offset + offset) for offset in offsets for m in matrices_of(layout)),
        "layers": tuple((first + offset, size) for offset in offsets for first, size in layers_of(layout)),
    }


def exchange_codec(manifest: Manifest, dtype: torch.dtype, facts: Mapping[str, Any] = _NOTHING) -> ExchangeCodec:
    """Return the codec of all exchanges; `facts` as in `selection`. Raises ConfigError if a quantizer is not installed or two share a
    code.
    """
    section = manifest.compress
    codecs = {name: quantizer(name, dtype, trusted=True) for name in (section.request, section.response)}
    by_code(codecs)
    request, response = codecs[section.request], codecs[section.response]
    low_rank = None
    if section.select == "low_rank":
        low_rank = construct("compress", "low_rank", LowRank, _given(section, facts))
    chunk = 0
    if section.select == "dct_top_k":
        chunk = construct("compress", "dct_top_k", DctTopK, _given(section, facts)).chunk
    pieces = section.params()["parts"] if section.select == "fragment" else 0
    return ExchangeCodec(request, response, manifest.mix.clip_norm, clip, low_rank, chunk, pieces)


def selector_facts(section: CompressSection, kind: EdgeKind) -> SelectorFacts:
    """Return facts for the selector in exchanges of this kind: only a difference can be compared with a peer's vector, or have wishes."""
    facts = SELECTIONS.facts(section.select, trusted=True)
    return facts if kind is EdgeKind.DIFFERENCES else replace(facts, compares=False, wishes=False)


def extra_size(manifest: Manifest) -> ExtraSize:
    """Return the bytes that each message of an exchange carries besides the values of the vector."""
    if averages_memories(manifest):
        memories = memory_codec(manifest)
        return lambda count: TRAILER.size + memories.mean.size(count) + memories.square.size(count)
    return nothing


def memory_codec(manifest: Manifest) -> MemoryCodec:
    """Return the codec of optimisers' state, for a swarm that averages it."""
    keys = Moments(**manifest.mix.params()) if manifest.mix.kind == "moments" else Moments()
    return MemoryCodec(integer(keys.bits, nearest=True, bucket=MEMORY_BLOCK), every=keys.square_every)


def selection(
    section: CompressSection,
    request: Quantizer,
    response: Quantizer,
    facts: Mapping[str, Any] = _NOTHING,
    *,
    wishes: bool = False,
    extra_size: ExtraSize = nothing,
    effort: Effort | None = None,
) -> Selection:
    """Return the selector of an exchange's coordinates, by `facts` (see `parts`) where constructors take them.

    `wishes`: half of the coordinates are left to the responder's wishes; `extra_size`: bytes that both messages carry besides;
    `effort`: what exchanges take this node.

    Raises ConfigError: an unknown selector or value.
    """
    effort = effort or Effort()

    def limit(budget_bytes: int) -> int:
        return min((limit for limit in (budget_bytes, section.budget_bytes or 0) if limit > 0), default=0)

    def within(budget_bytes: int, dim: int) -> Selector:
        most = min(limit(budget_bytes) or MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES)  # bytes of both messages, so that each fits a frame
        return Mask(min(plan(most, dim, request, response, extra_size), effort.of(dim)))

    def by_layer(budget_bytes: int, dim: int) -> Selector:
        # Without a budget the request gets what top-k of the ratio's coordinates takes.
        count = kept(section.ratio, dim)
        asked, answered = listed_size(count, dim, request), response.size(count) + 2 * extra_size(count)
        budget = limit(budget_bytes) * asked // (asked + answered) or asked
        layered = {"layers": facts.get("layers"), "budget_bytes": budget, "quantizer": request}
        return SELECTORS.build("compress", "layered", {key: value for key, value in layered.items() if value is not None})

    if section.select == BUDGET:
        return within
    if section.select == "layered":
        return by_layer
    given = _given(section, facts)
    if wishes:
        given["ratio"] = section.ratio / 2.0
    selector = SELECTORS.build("compress", section.select, given, trusted=True)
    return lambda _budget_bytes, _dim: selector


def _given(section: CompressSection, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the selector's arguments: its keys, and the facts that its constructor takes."""
    taken = SELECTORS.parameters(section.select, trusted=True)
    return section.params() | {key: value for key, value in facts.items() if key in taken}
