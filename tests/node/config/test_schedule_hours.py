"""The minutes of the day at which a node may train."""

import pytest

from starling.gossip.errors import ConfigError
from starling.node.config.schedule_hours import DAY, inside, parse


@pytest.mark.parametrize(
    ("text", "count", "active", "at_rest"),
    [
        ("", DAY, [0, 720, 1439], []),
        ("09:00-17:30", 510, [540, 1049], [539, 1050, 0, 1439]),
        ("22:00-07:00", 540, [1320, 1439, 0, 419], [1319, 420]),
        ("22:00 - 7:00,12:00-13:30", 630, [1320, 419, 720, 809], [420, 719, 810, 1319]),
        ("00:00-24:00", DAY, [0, 1439], []),
        ("24:00-01:00", 60, [0, 59], [1439, 60]),
        ("00:00-12:00, 11:00-12:05", 725, [0, 719, 724], [725, 1439]),
    ],
)
def test_ranges_include_their_first_minute_and_not_their_last(text, count, active, at_rest):
    within = {minute for minute in range(DAY) if inside(parse(text), minute)}
    assert len(within) == count
    assert within >= set(active)
    assert not within & set(at_rest)


@pytest.mark.parametrize("text", ["22-7", "22:00", "25:00-07:00", "22:60-07:00", "24:01-02:00", "07:00-07:00", "22:00-07:00,", "at night"])
def test_unknown_words_are_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"^active: must be .* got '.*'; try `--set active=22:00-07:00`$"):
        parse(text)
