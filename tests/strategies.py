"""Hypothesis strategies and settings that tests of several folders share."""

from hypothesis import settings
from hypothesis import strategies as st

seeds = st.integers(0, 2**32)
"""Of generators: every example can be replayed from its seed."""
exponents = st.integers(-300, 300)
"""Of powers of ten that float64 holds."""


def examples(most: int) -> settings:
    """So many examples, however long one takes: machines that run tests differ."""
    return settings(max_examples=most, deadline=None)
