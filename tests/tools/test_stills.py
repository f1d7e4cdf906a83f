"""Stills are made from a record alone, and are reproducible."""

import pytest

from tests.harness.records import recorded
from tools.stills import STILLS, main

pytestmark = pytest.mark.slow


def test_a_record_becomes_pictures_of_every_screen(tmp_path, capsys):
    runs = [str(recorded(tmp_path / f"node-{number}" / "record.jsonl", number=number, seconds=5)) for number in range(2)]
    assert main([*runs, "--to", str(tmp_path / "stills"), "--at", "1", "--size", "80x24", "--node", "1"]) == 0
    written = sorted(path.stem for path in (tmp_path / "stills").glob("*.svg"))
    assert written == sorted(STILLS)
    assert capsys.readouterr().out.count(".svg") == len(STILLS)
    node, light = ((tmp_path / "stills" / f"{name}.svg").read_text() for name in ("node", "light"))
    assert "round&#160;5/200" in node
    assert "[node-1]" in node
    assert node != light


@pytest.mark.parametrize("wrong", [["--size", "80"], ["--size", "0x9"], ["--at", "2"]])
def test_wrong_options_are_refused_with_a_suggestion(tmp_path, capsys, wrong):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "record.jsonl"), *wrong])
    assert ended.value.code == 2
    assert "try --" in capsys.readouterr().err


def test_an_invalid_record_is_reported_in_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "none.jsonl"), "--to", str(tmp_path / "stills")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
