"""`starling logs`: the last events for people or programs, and following a log that is renamed, deleted or emptied."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from starling.node.cli import logs
from starling.node.cli.logs import Reader
from starling.node.cli.main import main
from starling.node.storage import log
from tests.harness.cli_doubles import refused
from tests.harness.schemas import valid

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(logs.time, "localtime", logs.time.gmtime)  # wherever this runs
    (tmp_path / "node.toml").touch()
    return tmp_path


@pytest.fixture
def reader(place):
    """Return a reader of a log that may not exist yet."""
    with Reader(place / "log.jsonl") as opened:
        yield opened


def line(event, level="info", time=1_700_000_000.0, **fields):
    return json.dumps({"time": time, "level": level, "event": event, "peer_id": "12D3", "run_id": "r", **fields}) + "\n"


def append(place, *lines, name="log.jsonl"):
    with (place / name).open("a") as file:
        file.writelines(lines)


def rotate(place):
    (place / "log.jsonl").replace(place / "log.jsonl.1")


def events(reader):
    return [event["event"] for event in reader.read()]


def test_the_reader_and_the_log_have_one_file_name():
    """The reader looks where the node writes."""
    assert logs.LOG_NAME == log.LOG_NAME


def test_text_output_has_time_level_and_event(place, capsys):
    append(
        place,
        line("round_mixed", round=7, loss=0.123456, late=None, to=["a", "b"]),
        line("peer_died", "warning", text="…abc is silent"),
        line("bug", "error"),
    )
    assert main(["logs", "--dir", str(place)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2023-11-14 22:13:20   round_mixed  [round=7 loss=0.1235 late=– to=a,b]",
        "2023-11-14 22:13:20 ! peer_died: …abc is silent",
        "2023-11-14 22:13:20 ✗ bug",
    ]


def test_json_output_has_every_field_and_the_version(place, capsys):
    append(place, line("round_mixed", round=7), line("peer_died", "warning"))
    assert main(["logs", "--dir", str(place), "--json"]) == 0
    first, second = (valid("logs", each) for each in capsys.readouterr().out.splitlines())
    assert first == {"version": 1, **json.loads(line("round_mixed", round=7))}
    assert second["level"] == "warning"


def test_the_log_that_a_node_writes_fits_the_schema(place, capsys):
    """The log contains a traceback and a library's warning."""
    with log.open_log(place, peer_id="12D3", run_id="r", stderr=io.StringIO()) as logger:
        logger.write("info", "round_mixed", round=7, loss=float("nan"))
        logger.write("warning", "peer_fault", text="bad_frame")
        logger.write("error", "connection_failed", exception="Traceback: why")
    assert main(["logs", "--dir", str(place), "--json"]) == 0
    printed = [valid("logs", each) for each in capsys.readouterr().out.splitlines()]
    assert [each["event"] for each in printed] == ["round_mixed", "peer_fault", "connection_failed"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-n", "2"], ["c", "d"]),
        (["-n", "0"], []),
        (["--level", "warning"], ["b", "c"]),
        (["--level", "error", "-n", "5"], ["c"]),
        (["--level", "warning", "-n", "1"], ["c"]),
        ([], ["a", "b", "c", "d"]),
    ],
)
def test_the_last_events_at_or_above_a_level_are_shown(options, said, place, capsys):
    """Events are counted after filtering, over both files."""
    append(place, line("a"), line("b", "warning"), name="log.jsonl.1")
    append(place, line("c", "error"), line("d"))
    assert main(["logs", "--dir", str(place), "--json", *options]) == 0
    assert [json.loads(each)["event"] for each in capsys.readouterr().out.splitlines()] == said


def test_invalid_lines_are_skipped(place, capsys):
    """A killed node leaves a partial last line, and users may write anything into a file."""
    append(place, line("a"), '{"time": 1.0, "lev\n', "[]\n", "\x1b[2J\n", "\n", line("b", text="\x1b[2J\r"), '{"time": 2.0, "event": "c"')
    assert main(["logs", "--dir", str(place)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert [each.split()[2].rstrip(":") for each in out.splitlines()] == ["a", "b"]


WRONG = [
    (["--dir", "."], 1, ["no log yet", "`starling run --dir .`"]),
    (["--level", "loud"], 2, ["'loud'", "`starling logs --help`"]),
    (["-n", "-1"], 2, ["-1", "`starling logs --help`"]),
]


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG, ids=[" ".join(a) for a, _, _ in WRONG])
def test_wrong_input_is_one_line(arguments, code, words, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    refused(capsys, ["logs", *arguments], *words, code=code)


def test_each_event_is_read_once_and_only_as_a_whole_line(place, reader):
    assert events(reader) == []
    append(place, line("a"), line("b")[:20])
    assert events(reader) == ["a"]
    append(place, line("b")[20:])
    assert events(reader) == ["b"]
    assert events(reader) == []


@pytest.mark.parametrize("rotations", [1, 2])
def test_a_rotation_loses_and_repeats_nothing(rotations, place, reader):
    """After two rotations in a row the lines between them are in the older file, which the reader never opened."""
    append(place, line("old"), name="log.jsonl.1")
    append(place, line("a"))
    assert events(reader) == ["old", "a"]
    append(place, line("b"))
    rotate(place)
    if rotations == 2:
        append(place, line("c"))
        rotate(place)
    said = events(reader)
    append(place, line("d"))
    assert said + events(reader) == ["b", *(["c"] if rotations == 2 else []), "d"]
    assert events(reader) == []


def test_lines_written_during_a_rotation_are_not_lost(place, reader, monkeypatch):
    """Between the reader's last read of the file and its check of the name, the node writes and renames."""
    append(place, line("a"))
    look = reader.next_file

    def late():
        if (place / "log.jsonl").exists() and not (place / "log.jsonl.1").exists():
            append(place, line("b"))
            rotate(place)
            append(place, line("c"))
        return look()

    monkeypatch.setattr(reader, "next_file", late)
    assert events(reader) == ["a", "b", "c"]


def test_following_continues_after_a_log_is_deleted_or_emptied(place, reader):
    append(place, line("old"), name="log.jsonl.1")
    append(place, line("a"), line("a"))
    assert events(reader) == ["old", "a", "a"]
    (place / "log.jsonl").write_text(line("b"))
    assert events(reader) == ["b"]
    (place / "log.jsonl").unlink()
    assert events(reader) == []
    append(place, line("c"))
    assert events(reader) == ["c"]


@pytest.fixture
def follower(place):
    """Run `starling logs -f` as a process, from its first line on."""
    append(place, line("begun"))
    command = [sys.executable, "-m", "starling.node.cli.main", "logs", "-f", "--json", "--dir", str(place)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["event"] == "begun"
        yield process
        process.kill()


@pytest.mark.real
@pytest.mark.slow
def test_a_follower_sees_a_restart_in_a_new_file_and_ends_quietly_on_ctrl_c(follower, place):
    rotate(place)
    append(place, line("restarted"), line("went_on", "warning"))
    printed = [valid("logs", follower.stdout.readline())["event"] for _ in range(2)]
    assert printed == ["restarted", "went_on"]
    follower.send_signal(signal.SIGINT)
    assert follower.communicate(timeout=30) == ("", "")
    assert follower.returncode == 0


@pytest.mark.real
@pytest.mark.slow
def test_a_follower_ends_when_its_pipe_is_closed(follower):
    """`starling logs -f | head -1`, with no further event."""
    follower.stdout.close()
    assert follower.wait(30) == 0
    assert follower.stderr.read() == ""
