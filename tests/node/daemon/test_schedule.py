"""When a node pauses itself: at the boundaries of its hours, at those of the mains, and never in between."""

import time

import pytest
import trio

from starling.node.config.schema import NodeConfig
from starling.node.daemon.schedule import CHECK_S, Schedule
from tests.harness.virtual import virtual

NINE = 1_700_000_000 // 86_400 * 86_400 + 9 * 3600  # unix time


@pytest.fixture(autouse=True)
def two_hours_east(monkeypatch):
    """Local time is meant: nine o'clock UTC is eleven here."""
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def told(config, seconds, on_battery=lambda: False):
    """What a schedule says in so many seconds from nine o'clock UTC on: (second, why)."""
    begin, said = trio.current_time(), []
    schedule = Schedule(
        config, lambda why: said.append((trio.current_time() - begin, why)), lambda: NINE + trio.current_time() - begin, on_battery
    )
    with trio.move_on_after(seconds):
        await schedule.serve()
    return said


@virtual
async def test_a_node_rests_from_the_end_of_its_hours_to_their_next_beginning():
    said = await told(NodeConfig(active="22:00-11:30, 13:00-14:00"), 5.1 * 3600)
    assert [bool(why) for _, why in said] == [True, False, True]
    assert [at for at, _ in said] == pytest.approx([1800, 7200, 10_800], abs=CHECK_S)
    assert said[0][1] == "it is not in its active hours, 22:00-11:30, 13:00-14:00"


@virtual
async def test_a_node_started_outside_its_schedule_pauses_at_once():
    assert [at for at, _ in await told(NodeConfig(active="22:00-07:00"), 3600)] == [0.0]
    assert await told(NodeConfig(), 86_400) == []


@virtual
async def test_a_machine_on_battery_rests_where_its_owner_wants_that():
    begin = trio.current_time()
    on_battery = lambda: 100 < trio.current_time() - begin < 200  # noqa: E731
    said = await told(NodeConfig(pause_on_battery=True), 600, on_battery)
    assert [why for _, why in said] == ["the machine runs on battery", ""]
    assert [at for at, _ in said] == pytest.approx([100, 200], abs=CHECK_S)
    begin = trio.current_time()
    assert await told(NodeConfig(), 600, on_battery) == []
