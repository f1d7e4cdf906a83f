"""Hypothesis strategies and settings shared by tests of several folders."""

import os

from hypothesis import settings
from hypothesis import strategies as st

seeds = st.integers(0, 2**32)
"""Of generators: every example can be replayed from its seed."""
exponents = st.integers(-300, 300)
"""Of powers of ten that float64 holds."""


MORE = float(os.environ.get("STARLING_EXAMPLES", "0.33"))
"""Times as many examples: a third where nothing is said; `make acceptance` takes more."""

SAME = "STARLING_EXAMPLES" not in os.environ
"""Whether every run draws the same: whether a change lands must not depend on luck. `make acceptance` draws anew each time."""


def examples(most: int) -> settings:
    """Return settings for this many examples, times MORE, without a deadline, since machines differ."""
    return settings(max_examples=max(4, round(MORE * most)), derandomize=SAME, deadline=None)
