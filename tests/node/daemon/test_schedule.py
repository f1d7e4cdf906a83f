"""A node pauses itself at the boundaries of its hours and when mains power comes or goes, and at no other time."""

import time

import pytest
import trio

from starling.node.config.schema import NodeConfig
from starling.node.daemon.schedule import CHECK_S, Schedule
from tests.harness.virtual import virtual

NINE = 1_700_000_000 // 86_400 * 86_400 + 9 * 3600  # unix time


@pytest.fixture(autouse=True)
def two_hours_east(monkeypatch):
    """Set local time to UTC + 2, since schedules use local time."""
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def told(config, seconds, on_battery=lambda: False):
    """Return what a schedule reports within the given seconds from nine o'clock UTC on: (second, reason)."""
    begin, said = trio.current_time(), []
    schedule = Schedule(
        config, lambda why: said.append((trio.current_time() - begin, why)), lambda: NINE + trio.current_time() - begin, on_battery
    )
    with trio.move_on_after(seconds):
        await schedule.serve()
    return said


@virtual
async def test_a_node_pauses_outside_its_hours():
    said = await told(NodeConfig(active="22:00-11:30, 13:00-14:00"), 5.1 * 3600)
    assert [bool(why) for _, why in said] == [True, False, True]
    assert [at for at, _ in said] == pytest.approx([1800, 7200, 10_800], abs=CHECK_S)
    assert said[0][1] == "it is not in its active hours, 22:00-11:30, 13:00-14:00"


@virtual
async def test_a_node_started_outside_its_schedule_pauses_at_once():
    assert [at for at, _ in await told(NodeConfig(active="22:00-07:00"), 3600)] == [0.0]
    assert await told(NodeConfig(), 86_400) == []


@virtual
async def test_a_node_pauses_on_battery_if_configured():
    begin = trio.current_time()
    on_battery = lambda: 100 < trio.current_time() - begin < 200  # noqa: E731
    said = await told(NodeConfig(pause_on_battery=True), 600, on_battery)
    assert [why for _, why in said] == ["the machine runs on battery", ""]
    assert [at for at, _ in said] == pytest.approx([100, 200], abs=CHECK_S)
    begin = trio.current_time()
    assert await told(NodeConfig(), 600, on_battery) == []
