"""Hypothesis strategies and settings shared by tests of several folders."""

import os

from hypothesis import settings
from hypothesis import strategies as st

seeds = st.integers(0, 2**32)
"""Of generators: every example can be replayed from its seed."""
exponents = st.integers(-300, 300)
"""Of powers of ten that float64 holds."""


MORE = float(os.environ.get("STARLING_EXAMPLES", "0.33"))
"""Times as many examples: a third in every run, as each run draws its own; `make acceptance` takes more."""


def examples(most: int) -> settings:
    """Return settings for this many examples, times MORE, without a deadline, since machines differ."""
    return settings(max_examples=max(4, round(MORE * most)), deadline=None)
