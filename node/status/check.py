"""Result of one check of `starling doctor`. A leaf: the command line prints it, the terminal UI and the web page draw it."""

from typing import Literal

import msgspec

Answer = Literal["ok", "warn", "fail", "unknown"]


class Check(msgspec.Struct, frozen=True):
    """One check of `starling doctor`."""

    check: str
    """Name of the check: versions, memory, port, bootstrap …; docs/operating.md lists them."""
    verdict: Answer
    """warn: a node works, but worse than it could. fail: it does not work. unknown: this could not be determined."""
    found: str
    todo: str = ""
    """What to do about it, or next; "" if nothing."""
