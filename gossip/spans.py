"""Parts of a flat vector: the coordinates of some of a model's parameters. Shapes: d parameters, s of them in a part."""

from __future__ import annotations

from collections.abc import Container

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import Layout

Spans = tuple[slice, ...]
"""Coordinates in ascending order, those side by side in one piece."""


def spans_of(layout: Layout, names: Container[str]) -> Spans:
    """Return the spans of the parameters of these names."""
    spans: list[slice] = []
    for name, start, end in zip(layout.names, layout.offsets, layout.offsets[1:], strict=False):
        if name not in names or start == end:
            continue
        if spans and spans[-1].stop == start:
            spans[-1] = slice(spans[-1].start, end)
        else:
            spans.append(slice(start, end))
    return tuple(spans)


def take(x: Tensor, spans: Spans) -> Tensor:
    """Return (…, s) of x (…, d), a copy."""
    return torch.cat([x[..., span] for span in spans], dim=-1)


def put(x: Tensor, part: Tensor, spans: Spans) -> Tensor:
    """Return a copy of x (…, d) with this part (…, s), or the first s of a longer one."""
    whole, start = x.clone(), 0
    for span in spans:
        length = span.stop - span.start
        whole[..., span] = part[..., start : start + length]
        start += length
    return whole


def unmatched(key: str, pattern: str, layout: Layout) -> str:
    """Return the message for a pattern of the manifest that matches no name."""
    shown = ", ".join(layout.names[:6]) + (" …" if len(layout.names) > 6 else "")
    return f"{key}: {pattern!r} matches no parameter of this model; its names are {shown}"
