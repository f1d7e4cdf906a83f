"""A record stores little more than changes, and whole snapshots are read back."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from starling.node.status import record
from starling.node.status.record import MAX_POINTS, Curve
from starling.node.status.snapshot import Point
from tests.harness.records import at_second, write
from tests.strategies import examples


def test_a_record_gives_back_its_snapshots(tmp_path):
    written = [at_second(second) for second in (0, 1, 2, 5, 40, 41, 90)]
    assert record.load(write(tmp_path / "record.jsonl", written)) == written


def test_a_line_contains_only_changes(tmp_path):
    text = record.line(at_second(40), at_second(42))
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    line = json.loads(text)
    assert [point[0] for point in line["loss_curve"]] == [41, 42]
    assert line["value_curve"] == []
    assert [event["text"] for event in line["events"]] == ["41", "42"]
    assert [each["number"] for each in line["transactions"]] == [41, 42]


@given(st.lists(st.sampled_from("ab"), max_size=12), st.lists(st.sampled_from("ab"), max_size=4), st.integers(1, 6))
def test_entries_appended_to_a_bounded_list_are_never_lost(before, new, limit):
    """Equal entries may be appended too often, but never too rarely: the hard case is a bounded list with repetitions."""
    held, now = tuple(before[-limit:]), tuple((before + new)[-limit:])
    written = record.appended(held, now)
    assert (held + written)[-limit:] == now
    assert len(written) <= len(now)


def test_a_node_that_started_anew_is_written_whole_and_begins_anew(tmp_path):
    written = [at_second(3), at_second(4), at_second(1), at_second(2)]
    read = record.load(write(tmp_path / "record.jsonl", written))
    assert read == written
    assert len(read[2].loss_curve) == 2


def test_a_long_curve_stays_bounded_and_keeps_its_ends(tmp_path):
    """The daemon thins its curves as they grow, and so does a reader of the record."""
    line = [at_second(0, loss_curve=(Point(0, 0.0, 9.0),))]
    line += [at_second(at, loss_curve=(Point(at, float(at), 1.0),), events=(), transactions=()) for at in range(1, 1000)]
    path = tmp_path / "record.jsonl"
    path.write_bytes(b"".join(record.line(None, each) for each in line))
    read = record.load(path)
    for each in read:
        assert len(each.loss_curve) <= MAX_POINTS
        assert each.loss_curve[0].value == 9.0
        assert each.loss_curve[-1].round == each.round
        assert all(one.time_s < other.time_s for one, other in pairwise(each.loss_curve))
    assert len(read[-1].loss_curve) > MAX_POINTS // 3


def test_points_are_found_again_after_the_daemon_thinned_its_curve():
    before, now = at_second(40), at_second(42)
    thinned = structs.replace(now, loss_curve=(*now.loss_curve[::2][:-1], now.loss_curve[-1]))
    assert [point[0] for point in json.loads(record.line(before, thinned))["loss_curve"]] == [42]


def test_the_rotated_files_lines_come_first(tmp_path):
    path, written = tmp_path / "record.jsonl", [at_second(second) for second in range(6)]
    write(record.earlier(path), written[:3])
    write(path, written[3:])
    assert record.load(path) == written


def test_a_torn_last_line_is_left_out(tmp_path):
    path = write(tmp_path / "record.jsonl", [at_second(0), at_second(1), at_second(2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert record.load(path) == [at_second(0), at_second(1)]
    path.write_bytes(whole[:-1])  # complete but for the newline
    assert len(record.load(path)) == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has no complete snapshot"),
        (b"{", "has no complete snapshot"),
        (b"hello\n", "line 1 is no record's"),
        (b"\xff\x00\n", "line 1 is no record's"),
        (b"[" * 100_000 + b"\n", "line 1 is no record's"),
        (b'{"version": 1}\n', "line 1 is no record's"),
        (record.line(None, at_second(1, version=99)), "version 99, this program reads 1"),
        (record.line(None, at_second(1)) + b"\n" + record.line(None, at_second(2)), "line 2 is no record's"),
    ],
)
def test_a_file_that_is_no_record_gives_one_line(tmp_path, content, says):
    path = tmp_path / "record.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as caught:
        record.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_endless_line_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "record.jsonl"
    path.write_bytes(b" " * 5000)
    with pytest.raises(ValueError, match="line 1 has more than"):
        record.load(path)


def test_an_unreadable_record_gives_one_line(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        record.load(tmp_path / "record.jsonl")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        record.load(tmp_path)


@examples(60)
@given(count=st.integers(0, 3000), limit=st.integers(4, 240))
def test_a_curve_keeps_its_ends_its_order_and_even_spacing_in_bounded_memory(count, limit):
    """A drawn curve must start and end with the run, with even spacing in between."""
    curve = Curve(limit)
    for number in range(count):
        curve.add(number, float(number), 1.0)
    rounds = [point.round for point in curve.points]
    assert len(rounds) == min(count, len(rounds)) <= limit
    if not count:
        return
    assert rounds[0] == 0
    assert rounds[-1] == count - 1
    gaps = [later - earlier for earlier, later in pairwise(rounds)]
    assert len(set(gaps[:-1])) <= 1
    assert all(0 < gap <= gaps[0] for gap in gaps)
    assert len(rounds) >= min(count, limit // 2)


def test_a_value_that_is_not_finite_is_not_a_point():
    curve = Curve()
    for value in (1.0, float("nan"), float("inf"), 2.0):
        curve.add(0, 0.0, value)
    assert [point.value for point in curve.points] == [1.0, 2.0]
