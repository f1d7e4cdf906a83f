"""The record's file is bounded, survives disk errors and restarts, and never ends the run."""

import json
import os

import pytest
import trio

from starling.gossip.errors import ConfigError
from starling.node.cli.demo import make_plan
from starling.node.config.schema import RecordSection
from starling.node.daemon.observe import recorder as shell
from starling.node.daemon.observe.recorder import Recorder, RoundLog, Totals, round_fields
from starling.node.daemon.progress import Computed
from starling.node.demo.swarm import RECORD_S, Demo
from starling.node.net.api import Traffic
from starling.node.status.record import RECORD_NAME, load
from starling.node.status.snapshot import EngineFigures, Exchanges, PeerStatus
from tests.harness.daemons import Reports
from tests.harness.records import at_second

pytestmark = pytest.mark.trio


class Node:
    """Has a status to record: its rounds are the seconds since the test began."""

    def __init__(self, **changes):
        self.began, self.changes = trio.current_time(), changes

    def __call__(self):
        return at_second(round(trio.current_time() - self.began), **self.changes)


async def record(path, *, seconds, told=None, node=None, **section):
    """Record for the given seconds and return what was reported."""
    told = told or Reports()
    recorder = Recorder(RecordSection(**{"every_s": 1.0, **section}), path, node or Node(), told)
    with trio.move_on_after(seconds):
        await recorder.serve()
    return told.names


async def test_a_line_a_second_and_one_at_the_end(tmp_path, autojump_clock):
    path = tmp_path / RECORD_NAME
    assert await record(path, seconds=3.5) == []
    assert load(path) == [at_second(second) for second in (0, 1, 2, 3, 4)]


async def test_recording_is_off_by_default(tmp_path, autojump_clock):
    assert RecordSection().every_s == 0
    assert await record(tmp_path / RECORD_NAME, seconds=3, every_s=0.0) == []
    assert list(tmp_path.iterdir()) == []


async def test_a_pause_is_never_shorter_than_a_tenth_of_a_second(tmp_path, autojump_clock):
    path = tmp_path / RECORD_NAME
    await record(path, seconds=1, every_s=1e-9)
    assert len(load(path)) <= 12


async def test_the_file_is_bounded_and_remains_a_valid_record(tmp_path, autojump_clock, monkeypatch):
    monkeypatch.setattr(shell, "RECORD_LINES", 0)
    path = tmp_path / RECORD_NAME
    most = 1 << 16
    assert await record(path, seconds=150, max_bytes=most) == []
    assert sorted(file.name for file in tmp_path.iterdir()) == [RECORD_NAME, RECORD_NAME + ".1"]
    assert all(file.stat().st_size <= most // 2 for file in tmp_path.iterdir())
    read = load(path)
    assert read[-1] == at_second(150)
    assert read[0].round > 0
    assert all(each == at_second(each.round) for each in read)  # starts with a whole line


async def test_a_node_that_is_started_again_goes_on_with_its_record(tmp_path, autojump_clock):
    path = tmp_path / RECORD_NAME
    await record(path, seconds=2.5)
    with path.open("ab") as file:
        file.write(b'{"version": 1, "peer": "12D')
    await record(path, seconds=1.5)
    assert [each.round for each in load(path)] == [0, 1, 2, 2, 0, 1, 2]


async def test_half_a_line_longer_than_a_block_is_cut_off(tmp_path, autojump_clock, monkeypatch):
    monkeypatch.setattr(shell, "_BLOCK", 10)
    path = tmp_path / RECORD_NAME
    path.write_bytes(b"x" * 1000)
    await record(path, seconds=0.5)
    assert [each.round for each in load(path)] == [0, 0]


async def test_a_full_disk_is_reported_once_and_no_line_is_lost(tmp_path, autojump_clock, monkeypatch):
    path = tmp_path / RECORD_NAME
    told = Reports()
    write, full = os.write, False

    def refusing(file, data):
        if full:
            write(file, bytes(data)[:7])  # a full disk writes only a part of it
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", refusing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: record(path, seconds=9.5, told=told))
        await trio.sleep(2.5)
        full = True
        await trio.sleep(4)
        assert told.names == ["cannot_record"]
        full = False
    assert told.names == ["cannot_record", "records_again"]
    assert load(path) == [at_second(second) for second in (0, 1, 2, 7, 8, 9, 10)]


async def test_an_unwritable_path_is_reported_once(tmp_path, autojump_clock):
    (tmp_path / RECORD_NAME).mkdir()
    assert await record(tmp_path / RECORD_NAME, seconds=5.5) == ["cannot_record"]
    assert await record(tmp_path / "missing" / RECORD_NAME, seconds=5.5) == ["cannot_record"]


async def test_longer_lines_are_written_less_often(tmp_path, autojump_clock):
    path = tmp_path / RECORD_NAME
    crowd = tuple(PeerStatus(f"12D3{n:040}", "alive") for n in range(500))
    await record(path, seconds=100, max_bytes=10 << 20, node=Node(peers=crowd))
    assert 3 < len(load(path)) < 12


async def test_pandas_reads_a_record(tmp_path, autojump_clock):
    path = tmp_path / RECORD_NAME
    await record(path, seconds=3.5)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert len({tuple(line) for line in lines}) == 1
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.read_json(path, lines=True)
    assert list(frame["round"]) == [0, 1, 2, 3, 4]
    assert frame["loss_curve"].map(len).sum() == 5


def seen(at_s, rounds, steps=0, seconds=0.0, **changes):
    """A node that started at round 100, from a checkpoint."""
    return Totals(at_s=at_s, round=100 + rounds, computed=Computed(rounds, steps, seconds), **changes)


async def test_a_line_sums_up_what_was_done_since_the_line_before():
    before = seen(10.0, 4, 80, 3.0, exchanges=Exchanges(committed=6), traffic=Traffic(100, 0))
    now = seen(
        11.5,
        7,
        140,
        4.0,
        figures=EngineFigures(loss=0.5, distance=0.01),
        exchanges=Exchanges(committed=8, timeout=1),
        traffic=Traffic(150, 40),
    )
    assert round_fields(before, now) == {
        "round": 107,
        "rounds": 3,
        "loss": 0.5,
        "distance": 0.01,
        "steps": 60,
        "computing_s": 1.0,
        "waiting_s": 0.5,
        "committed": 2,
        "aborted": 0,
        "busy": 0,
        "timeout": 1,
        "bytes_sent": 50,
        "bytes_received": 40,
    }


@pytest.mark.parametrize(("rounds_per_s", "lines"), [(50.0, 10), (1.0, 10), (0.25, 2), (0.0, 0)])
async def test_fast_rounds_give_one_line_a_second_that_covers_every_round(autojump_clock, rounds_per_s, lines):
    told = []
    began = trio.current_time()
    look = RoundLog(lambda: seen(trio.current_time(), int((trio.current_time() - began) * rounds_per_s)), told.append)
    with trio.move_on_after(10.01):
        await look.serve()
    assert len(told) == lines
    assert sum(each["rounds"] for each in told) == int(10.01 * rounds_per_s)


async def test_the_last_round_is_recorded_when_the_node_ends(autojump_clock):
    told, done = [], 0
    look = RoundLog(lambda: seen(trio.current_time(), done), told.append)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look.serve)
            await trio.sleep(0.3)
            done = 5
            scope.cancel()
    assert [(each["round"], each["rounds"]) for each in told] == [(105, 5)]


async def test_a_recorded_demo_has_every_node_record_and_keeps_the_files(tmp_path):
    for record, every_s in ((True, RECORD_S), (False, 0)):
        demo = Demo(make_plan(nodes=2, rounds=5, folder=tmp_path, record=record))
        assert demo.config(1).record.every_s == every_s
    with pytest.raises(ConfigError, match="--record: needs --dir"):
        make_plan(nodes=2, rounds=5, record=True)
