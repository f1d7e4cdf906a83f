"""A recorded run is replayed on a time axis: several nodes at once, by keys and mouse, without changing anything."""

import pytest

from starling.tui.replay import Playback
from starling.tui.source import RecordSource, SocketSource, open_sources
from tests.harness.records import recorded
from tests.harness.snapshots import NOW, snapshot
from tests.harness.tui.looking import BOTH, LARGE, SMALL, look, screen_text

START = 1_000_000.0


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return [recorded(folder / "node-0" / "record.jsonl"), recorded(folder / "node-1" / "record.jsonl", number=1, first_s=10)]


def test_a_replay_advances_by_the_clock_times_the_speed_and_stops_at_the_end():
    clock = Clock()
    playback = Playback(START, START + 100, clock)
    clock.now = 2.0
    assert playback.position().at_s == 2.0
    playback.faster()
    clock.now = 4.0
    assert playback.position().at_s == 10.0
    playback.faster()
    clock.now = 5.0
    assert playback.position().at_s == 26.0
    clock.now = 50.0
    assert (playback.position().at_s, playback.position().playing) == (100.0, False)
    playback.faster()
    assert playback.position().speed == 1


def test_a_replay_pauses_restarts_at_the_end_and_seeks_within_bounds():
    clock = Clock()
    playback = Playback(START, START + 100, clock)
    playback.toggle()
    clock.now = 9.0
    assert playback.position().at_s == 0.0
    playback.seek(1.0)
    playback.toggle()
    assert (playback.position().at_s, playback.playing) == (0.0, True)
    for fraction, at_s in ((0.5, 50.0), (-3.0, 0.0), (7.0, 100.0)):
        playback.seek(fraction)
        assert playback.position().at_s == at_s


def test_a_record_of_one_line_can_be_replayed():
    playback = Playback(START, START, Clock())
    assert 0.0 <= playback.position().fraction <= 1.0
    (reading,) = RecordSource("n", [snapshot(time_s=START)], playback).poll()
    assert reading.snapshot.round == 42


def test_replay_shows_all_nodes_at_one_moment_and_late_ones_as_upcoming(run):
    sources, playback = open_sources(run, Clock())
    assert [source.name for source in sources] == ["node-0", "node-1"]
    first, second = (source.poll()[0] for source in sources)
    assert first.snapshot.round == 0
    assert second.snapshot is None
    assert "begins later" in second.trouble
    playback.seek(20.5 / 110)
    first, second = (source.poll()[0] for source in sources)
    assert (first.snapshot.round, second.snapshot.round) == (20, 20)
    assert len(first.snapshot.loss_curve) == 21  # whole again
    assert first.trouble is None
    assert first.as_of == START + 20.5
    playback.seek(1.0)
    first, second = (source.poll()[0] for source in sources)
    assert "nothing was recorded for 10 s" in first.trouble
    assert second.trouble is None


def test_records_and_running_nodes_can_be_looked_at_together(run, tmp_path):
    sources, playback = open_sources([tmp_path, run[0]])
    assert isinstance(sources[0], SocketSource)
    assert isinstance(sources[1], RecordSource)
    assert playback is not None
    assert open_sources([tmp_path])[1] is None


def test_an_invalid_record_is_refused_in_one_line_with_its_name(tmp_path):
    path = tmp_path / "record.jsonl"
    path.write_text("what is this\n")
    with pytest.raises(ValueError, match=r"record\.jsonl") as caught:
        open_sources([path])
    assert "\n" not in str(caught.value)


def replaying(run, keys, size=SMALL, *, then=None, paused=True):
    sources, playback = open_sources(run, Clock())
    if paused:
        playback.toggle()
    return look(sources, size, keys, then=then, playback=playback, clock=lambda: NOW + 1e6)


def timeline(screen):
    return screen.splitlines()[-2]


@pytest.mark.slow
@BOTH
def test_keys_move_along_the_time_and_every_screen_follows(run, size):
    _, seen = replaying(run, ["end", "left", "left", "right", "home", "right", "2", "right", "4", "end"], size)
    places = [timeline(screen) for screen in seen]
    for at, place in zip(("00:00", "01:50", "01:47", "01:44", "01:47", "00:00", "00:02", "00:02", "00:05"), places, strict=False):
        assert f"{at} " in place
        assert "01:50" in place
    assert "round 0/200" in seen[0]
    assert "round 100/200" in seen[1]
    assert "0 mixed 0" in seen[9]
    assert "0 mixed 100" in seen[10]
    assert "no news" not in seen[6]  # ages are relative to the replayed moment


@pytest.mark.slow
def test_space_plays_and_pauses_and_x_changes_the_speed(run):
    _, seen = replaying(run, ["space", "space", "x", "x", "x"])
    assert [timeline(screen).split()[0] for screen in seen] == ["‖", "▶", "‖", "‖", "‖", "‖"]
    assert [timeline(screen).split()[-1] for screen in seen[2:]] == ["1x", "4x", "16x", "1x"]


@pytest.mark.slow
def test_the_slider_its_sign_and_its_speed_can_be_clicked(run):
    async def click(pilot, app, seen):
        for column in (2, 76, 45):
            await pilot.click("#timeline", offset=(column, 0))
            await pilot.pause()
            seen.append(screen_text(app))

    _, seen = replaying(run, [], then=click)
    assert timeline(seen[1]).split()[0] == "▶"
    assert timeline(seen[2]).split()[-1] == "4x"
    assert " 01:05 " in timeline(seen[3])


@pytest.mark.slow
def test_n_chooses_another_node_of_the_replay_and_the_palette_lists_its_commands(run):
    _, seen = replaying(run, ["end", "n", "ctrl+p", "{play or}"], LARGE)
    assert "round 110/200" in seen[2]
    assert "replay: play or pause" in seen[-1]


@pytest.mark.slow
def test_a_filter_may_contain_spaces_without_starting_the_replay(run):
    _, seen = replaying(run, ["end", "4", "slash", "{mixed 99}", "home", "enter"])
    assert "0 mixed 99" in seen[-1]
    assert "events 1 of 50" in seen[-1]
    assert "01:50 " in timeline(seen[-1])


@pytest.mark.slow
def test_without_a_record_there_is_no_time_axis():
    _, seen = look([(*[],)], SMALL, keys=("space", "left", "home", "x"))
    assert all("━" not in screen for screen in seen)
