"""From a manifest's section to codecs and selectors, those of installed packages included."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from gossip.api import Quantizer, Selector
from gossip.catalogue import build
from gossip.compress.budget import plan
from gossip.compress.catalogue import QUANTIZERS, SELECTORS, by_code, quantizer
from gossip.compress.select import Mask
from gossip.mix.transaction import Terms
from node import plugins
from node.config import CompressSection, Manifest
from robust.clip import clip

BUDGET = "budget"
Selection = Callable[[int, int], Selector]
"""(bytes an exchange may cost or 0, D) -> which coordinates it is about."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def terms(manifest: Manifest, dtype: torch.dtype) -> Terms:
    """What the swarm agreed on for every exchange.

    Raises:
        ConfigError: a codec that is neither built in nor installed here, or two that share a code.
    """
    section, known = manifest.compress, plugins.catalogue_with_plugins(plugins.QUANTIZERS, QUANTIZERS)
    codecs = {name: quantizer(name, dtype, known) for name in (section.request, section.response)}
    by_code(codecs)
    return Terms(codecs[section.request], codecs[section.response], manifest.mix.clip_norm, clip)


def selection(
    section: CompressSection, request: Quantizer, response: Quantizer, facts: Mapping[str, Any] = _NOTHING
) -> Selection:
    """How the coordinates of an exchange are chosen.

    Args:
        section: of the manifest. Of its keys a selector gets those its constructor takes; one of a package `params` as well.
        request: codec of what the initiator sends.
        response: codec of what the responder sends.
        facts: further arguments for constructors that take them, by name.

    Raises:
        ConfigError: a selector that is neither built in nor installed here, or a value it refuses.
    """

    def within(budget_bytes: int, dim: int) -> Selector:
        limits = [limit for limit in (budget_bytes, section.budget_bytes) if limit > 0]
        return Mask(plan(min(limits, default=0), dim, request, response))

    if section.select == BUDGET:
        return within
    known = plugins.catalogue_with_plugins(plugins.SELECTORS, SELECTORS)
    taken = inspect.signature(known[section.select]).parameters if section.select in known else {}
    given = {key: value for key in taken if (value := getattr(section, key, facts.get(key))) is not None}
    if section.select == "drift_top_k":
        given["ratio"] = section.ratio / 2.0  # the other half is for the other end's wishes
    if section.select not in SELECTORS:
        given |= section.params
    selector = build("compress", known, section.select, given)
    return lambda _budget_bytes, _dim: selector
