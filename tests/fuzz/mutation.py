"""What goes wrong with bytes, on purpose or not: strategies for hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

LIES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
MOST_REPEATS = 500


@st.composite
def mutated(draw: Callable[..., Any], inputs: Sequence[bytes], most_bytes: int) -> bytes:
    """One of the inputs after up to four changes.

    Args:
        draw: hypothesis's.
        inputs: where to start, at least one.
        most_bytes: longest result.
    """
    data = draw(st.sampled_from(inputs))
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=4)):
        at = draw(st.integers(0, len(data)))
        data = change(draw, data, at, inputs)
    return data[:most_bytes]


def _flip(draw: Callable[..., Any], data: bytes, at: int, inputs: Sequence[bytes]) -> bytes:
    return data[:at] + bytes(byte ^ (1 << draw(st.integers(0, 7))) for byte in data[at : at + 1]) + data[at + 1 :]


def _cut(draw: Callable[..., Any], data: bytes, at: int, inputs: Sequence[bytes]) -> bytes:
    return data[:at]


def _extend(draw: Callable[..., Any], data: bytes, at: int, inputs: Sequence[bytes]) -> bytes:
    return data + draw(st.binary(min_size=1, max_size=20))


def _insert(draw: Callable[..., Any], data: bytes, at: int, inputs: Sequence[bytes]) -> bytes:
    return data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:]


def _remove(draw: Callable[..., Any], data: bytes, at: int, inputs: Sequence[bytes]) -> bytes:
    return data[:at] + data[at + draw(st.integers(1, 8)) :]


def _splice(draw: Callable[..., Any], data: bytes, at: int, inputs: Sequence[bytes]) -> bytes:
    other = draw(st.sampled_from(inputs))
    return data[:at] + other[draw(st.integers(0, len(other))) :]


def _repeat(draw: Callable[..., Any], data: bytes, at: int, inputs: Sequence[bytes]) -> bytes:
    part = data[at : at + draw(st.integers(1, 8))]
    return data[:at] + part * draw(st.sampled_from((2, 20, MOST_REPEATS))) + data[at:]


def _lie(draw: Callable[..., Any], data: bytes, at: int, inputs: Sequence[bytes]) -> bytes:
    """A length, count, index or number that is not so."""
    width = draw(st.sampled_from((1, 2, 4, 8)))
    number = draw(st.sampled_from(LIES)) % (1 << (8 * width))
    return data[:at] + number.to_bytes(width, draw(st.sampled_from(("little", "big")))) + data[at + width :]


CHANGES = (_flip, _cut, _extend, _insert, _remove, _splice, _repeat, _lie, _lie)
