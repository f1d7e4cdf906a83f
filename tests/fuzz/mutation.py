"""Mutations of valid inputs: a strategy for hypothesis."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
MOST_REPEATS = 500
CHANGES = ("flip", "cut", "extend", "insert", "remove", "splice", "repeat", "number", "number")


@st.composite
def mutated(draw: Callable[..., Any], inputs: Sequence[bytes], most_bytes: int) -> bytes:
    """Return one of the `inputs` after up to four changes, cut to `most_bytes`."""
    data = draw(st.sampled_from(inputs))
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=4)):
        at = draw(st.integers(0, len(data)))
        before, after = data[:at], data[at:]
        match change:
            case "flip":
                data = before + bytes(byte ^ (1 << draw(st.integers(0, 7))) for byte in after[:1]) + after[1:]
            case "cut":
                data = before
            case "extend":
                data += draw(st.binary(min_size=1, max_size=20))
            case "insert":
                data = before + draw(st.binary(min_size=1, max_size=8)) + after
            case "remove":
                data = before + after[draw(st.integers(1, 8)) :]
            case "splice":
                other = draw(st.sampled_from(inputs))
                data = before + other[draw(st.integers(0, len(other))) :]
            case "repeat":
                part = after[: draw(st.integers(1, 8))]
                data = before + part * draw(st.sampled_from((2, 20, MOST_REPEATS))) + after
            case _:  # a false length, count, index or number
                width = draw(st.sampled_from((1, 2, 4, 8)))
                number = draw(st.sampled_from(NUMBERS)) % (1 << (8 * width))
                data = before + number.to_bytes(width, draw(st.sampled_from(("little", "big")))) + after[width:]
    return data[:most_bytes]
