"""The log is JSON in the file and text on a terminal, and never stops the node."""

import io
import json
import logging

import pytest

from starling.node.storage.log import LOG_NAME, SHOWN, open_log
from tests.harness.processes import ROOT


class Terminal(io.StringIO):
    """A stream that reports being a terminal."""

    def isatty(self):
        return True


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_line_of_the_file_is_json_with_peer_and_run(tmp_path):
    with open_log(tmp_path, peer_id="12D3", run_id="r1", stderr=io.StringIO()) as log:
        log.write("info", "round_mixed", round=7, received=3)
    (line,) = lines(tmp_path / LOG_NAME)
    assert line.pop("time") > 0
    assert line == {"level": "info", "event": "round_mixed", "peer_id": "12D3", "run_id": "r1", "round": 7, "received": 3}


def test_a_terminal_gets_lines_for_a_person_without_control_characters(tmp_path):
    terminal = Terminal()
    with open_log(tmp_path, peer_id="12D3", run_id="r1", stderr=terminal) as log:
        log.write("warning", "peer_fault", text="a broke \x1b[2Jthe protocol", count=2)
    (line,) = terminal.getvalue().splitlines()
    assert "! peer_fault: a broke ·[2Jthe protocol  [count=2]" in line
    assert line.isprintable()


def test_a_pipe_gets_warnings_and_errors_alone_each_on_one_bounded_line(tmp_path):
    """A service's journal and a container's log show what is wrong, without a line for each member that comes."""
    pipe = io.StringIO()
    with open_log(tmp_path, peer_id="a", run_id="r", stderr=pipe) as log:
        log.write("info", "peer_joined", text="b joined")
        log.write("warning", "peer_fault", text="a broke\nthe protocol", count=2)
        log.write("error", "engine_lost", text="x" * 1000)
    fault, lost = pipe.getvalue().splitlines()
    assert fault.endswith("! peer_fault: a broke·the protocol  [count=2]")
    assert "✗ engine_lost: xxx" in lost
    assert len(lost) == 500


def test_a_pipe_gets_sixty_warnings_an_hour_and_then_how_many_it_did_not_get(tmp_path, monkeypatch):
    pipe, clock = io.StringIO(), [1e9]
    monkeypatch.setattr("time.time", lambda: clock[0])
    with open_log(tmp_path, peer_id="a", run_id="r", stderr=pipe) as log:
        for number in range(100):
            log.write("warning", "peer_fault", text=f"fault {number}")
        clock[0] += 3600
        log.write("warning", "peer_fault", text="an hour later")
        clock[0] -= 86400
        log.write("warning", "peer_fault", text="the clock was set back")
    shown = pipe.getvalue().splitlines()
    assert len(shown) == 63
    assert shown[59].endswith("fault 59")
    assert "40 warnings were left out here; see `starling logs --level warning --dir" in shown[60]
    assert shown[61].endswith("an hour later")
    assert shown[62].endswith("the clock was set back")
    assert len(lines(tmp_path / LOG_NAME)) == 102


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_warning_is_not_repeated_where_a_container_shows_the_file(tmp_path, monkeypatch, stream):
    """The image's entry point prints the file, so what the node writes as well would be there twice."""
    assert f"\nexport {SHOWN}=1\n" in (ROOT / "docker" / "entrypoint.sh").read_text()
    monkeypatch.setenv(SHOWN, "1")
    shown = stream()
    with open_log(tmp_path, peer_id="a", run_id="r", stderr=shown) as log:
        log.write("warning", "peer_fault", text="a broke the protocol")
    assert shown.getvalue() == ""
    assert len(lines(tmp_path / LOG_NAME)) == 1


def test_the_file_is_bounded_by_rotation(tmp_path):
    with open_log(tmp_path, peer_id="a", run_id="r", stderr=io.StringIO(), max_bytes=2000) as log:
        for number in range(200):
            log.write("info", "tick", number=number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [LOG_NAME, LOG_NAME + ".1"]
    assert all(file.stat().st_size < 2200 for file in files)
    assert lines(tmp_path / LOG_NAME)[-1]["number"] == 199


def test_an_unwritable_log_is_reported_once_and_the_run_continues(tmp_path):
    (tmp_path / LOG_NAME).mkdir()
    stderr = io.StringIO()
    with open_log(tmp_path, peer_id="a", run_id="r", stderr=stderr) as log:
        log.write("info", "one")
        log.write("info", "two")
        (tmp_path / LOG_NAME).rmdir()
        log.write("info", "three")
    (said,) = stderr.getvalue().splitlines()
    assert said.startswith("starling: cannot write the log")
    assert [line["event"] for line in lines(tmp_path / LOG_NAME)] == ["three"]


def test_warnings_of_libraries_go_to_the_file_and_not_to_the_terminal(tmp_path):
    terminal = Terminal()
    with open_log(tmp_path, peer_id="a", run_id="r", stderr=terminal):
        logging.getLogger("some.library").warning("dial of %s failed", "b")
        logging.getLogger("some.library").info("not worth it")
    (line,) = lines(tmp_path / LOG_NAME)
    assert (line["event"], line["library"], line["text"]) == ("library", "some.library", "dial of b failed")
    assert terminal.getvalue() == ""
    logging.getLogger("some.library").handle(logging.makeLogRecord({"msg": "after the end", "levelno": logging.WARNING}))
    assert len(lines(tmp_path / LOG_NAME)) == 1


def test_values_unknown_to_json_are_written_as_their_repr(tmp_path):
    with open_log(tmp_path, peer_id="a", run_id="r", stderr=io.StringIO()) as log:
        log.write("info", "odd", value=object, path=tmp_path)
    (line,) = lines(tmp_path / LOG_NAME)
    assert line["value"] == "<class 'object'>"


def test_the_line_per_round_goes_to_the_file_only(tmp_path):
    terminal = Terminal()
    with open_log(tmp_path, peer_id="a", run_id="r", stderr=terminal) as log:
        log.write("debug", "round", round=7)
        log.write("info", "peer_joined", text="b joined")
    assert [line["event"] for line in lines(tmp_path / LOG_NAME)] == ["round", "peer_joined"]
    assert len(terminal.getvalue().splitlines()) == 1
