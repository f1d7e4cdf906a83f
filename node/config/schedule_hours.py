"""The hours of the day at which an owner lets a node train."""

import re
from collections.abc import Collection

from starling.gossip.errors import ConfigError

DAY = 24 * 60
_RANGE = re.compile(r"(\d{1,2}):([0-5]\d)\s*-\s*(\d{1,2}):([0-5]\d)", re.ASCII)


def parse(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ranges "22:00-07:00, 12:00-13:30" as (begin, end), minutes of the day in [0, 1440]; "" has none.

    Raises ConfigError: not of that form.
    """
    return tuple(_range(part, text) for part in text.split(",")) if text.strip() else ()


def _range(part: str, text: str) -> tuple[int, int]:
    if found := _RANGE.fullmatch(part.strip()):
        hour, minute, last_hour, last_minute = map(int, found.groups())
        begin, end = 60 * hour + minute, 60 * last_hour + last_minute
        if max(begin, end) <= DAY and begin != end:
            return begin, end
    raise ConfigError(
        f"active: must be ranges of two different times from 00:00 to 24:00, as 22:00-07:00, 12:00-13:30, got {text!r}; "
        "try `--set active=22:00-07:00`"
    )


def inside(ranges: Collection[tuple[int, int]], minute: int) -> bool:
    """Return whether a minute of the day, [0, 1440), is in one of the ranges, which exclude their end and may go past midnight.

    Without ranges every minute is.
    """
    return not ranges or any(begin <= minute < end if begin < end else minute >= begin or minute < end for begin, end in ranges)
