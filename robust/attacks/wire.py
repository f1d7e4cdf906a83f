"""Malformed payloads, made from an honest one. Every decoder must refuse them before they cost memory or time.

A payload is header · support · values (`gossip.compress.codec`). `craft` gives what a reader without checks would decode: numbers that
are not finite, or very large.

Shapes: d parameters, r receivers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.compress.header import ATOMS, BLOCKS, FACTORS, HEADER, LISTING, Kind
from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.robust.attacks.api import Scene, Target

_NAN = b"\xff"  # repeated, a NaN in every float format; quantized values get scales of NaN
_HUGE = b"\x7b"  # repeated, 6e4 to 1e286: finite in every float format, and no sum of squares is
_NUMBER = 1e38


@dataclass(frozen=True, slots=True)
class Distorted:
    """Changes payloads by a function.

    Args:
        change: payload -> what is sent.
        number: value of every coordinate for a reader without checks.
    """

    change: Callable[[bytes], bytes]
    number: float = float("nan")
    targets: ClassVar[Target] = "wire"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Send a vector filled with `number` to all receivers."""
        return torch.full_like(scene.own, self.number).expand_as(scene.receivers), memory

    def distort(self, payload: bytes) -> bytes:
        """Apply `change` to payloads of at least a header's length; shorter ones stay unchanged."""
        return self.change(payload) if len(payload) >= HEADER.size else payload


def nan() -> Distorted:
    """Set every number, or every scale, to NaN."""
    return Distorted(lambda payload: _filled(payload, _NAN))


def huge() -> Distorted:
    """Set every number, or every scale, to a finite but huge value."""
    return Distorted(lambda payload: _filled(payload, _HUGE), number=_NUMBER)


def bomb() -> Distorted:
    """Return a few bytes that claim to be the list of all coordinates but one, of a vector of 2**40 numbers."""

    def grown(payload: bytes) -> bytes:
        version, _, code, _ = HEADER.unpack_from(payload)
        listing = LISTING.pack(2**32 - 1, 8) + bytes(8)
        return HEADER.pack(version, Kind.INDICES, code, 2**40) + listing

    return Distorted(grown)


def bad_indices() -> Distorted:
    """List one coordinate far outside the vector, with a value."""

    def listed(payload: bytes) -> bytes:
        version, _, code, dim = HEADER.unpack_from(payload)
        return HEADER.pack(version, Kind.INDICES, code, dim) + LISTING.pack(1, 8) + b"\xff" * 8 + payload[-4:]

    return Distorted(listed)


def wrong_length() -> Distorted:
    """Cut off the last byte."""
    return Distorted(lambda payload: payload[:-1])


def wrong_dtype() -> Distorted:
    """Claim another codec for the values."""

    def renamed(payload: bytes) -> bytes:
        version, kind, code, dim = HEADER.unpack_from(payload)
        return HEADER.pack(version, kind, code ^ 0xFF, dim) + payload[HEADER.size :]

    return Distorted(renamed)


def _filled(payload: bytes, byte: bytes) -> bytes:
    """Fill everything after the header and the support with `byte`."""
    kind = HEADER.unpack_from(payload)[1]
    start = HEADER.size + {Kind.BLOCKS: BLOCKS.size, Kind.ATOMS: ATOMS.size, Kind.FACTORS: FACTORS.size}.get(kind, 0)
    if kind == Kind.INDICES and len(payload) >= start + LISTING.size:
        start += LISTING.size + LISTING.unpack_from(payload, start)[1]
    return payload[:start] + byte * (len(payload) - start)
