"""`starling ban`, `unban` and `trust`: what is sent to the node, and what a person reads."""

from __future__ import annotations

import json

import pytest

from starling.gossip.errors import ConfigError
from starling.node.cli.main import main
from starling.node.cli.members import seconds
from starling.node.status import control


@pytest.fixture
def asked(monkeypatch):
    """Requests to a node that does what it is told."""
    requests = []

    def request(run_dir, op, *, timeout_s=0.0, **fields):
        requests.append((op, fields))
        return {"peer": "12D3KooWliar", "standing": "ban", "shut_out_s": fields.get("for_s")}

    monkeypatch.setattr(control, "request", request)
    return requests


def test_a_ban_says_whom_for_how_long_and_why(asked, capsys):
    assert main(["ban", "liar", "--for", "24h", "--why", "spam"]) == 0
    assert main(["ban", "liar"]) == 0
    assert asked == [
        ("ban", {"peer": "liar", "why": "spam", "for_s": 86400.0}),
        ("ban", {"peer": "liar", "why": ""}),
    ]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "banned 12D3KooWliar\n" * 2


def test_unban_and_trust_name_the_peer_they_found(asked, capsys):
    assert main(["unban", "liar"]) == 0
    assert main(["trust", "liar"]) == 0
    assert [op for op, _ in asked] == ["unban", "trust"]
    assert capsys.readouterr().err.count("12D3KooWliar") == 2


@pytest.mark.parametrize("op", ["ban", "unban", "trust"])
def test_json_is_for_programs(op, asked, capsys):
    assert main([op, "liar", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["peer"] == "12D3KooWliar"
    assert err == ""


def test_durations_are_written_as_people_do():
    for text, value in {"90s": 90.0, "30m": 1800.0, "1.5h": 5400.0, "7d": 604800.0, " 2 W ": 1209600.0}.items():
        assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "0s", "1y", "1e9d", "24hours", "999999d", "inf"])
def test_other_durations_are_one_line_with_an_example(text, asked, capsys):
    with pytest.raises(ConfigError, match="try `--for 24h`"):
        seconds(text)
    assert main(["ban", "liar", "--for", text or " "]) == 2
    assert asked == []
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_node_it_says_how_to_start_one(tmp_path, capsys):
    assert main(["ban", "liar", "--dir", str(tmp_path)]) == 2
    assert "holds no node" in capsys.readouterr().err
    (tmp_path / "node.toml").touch()
    assert main(["ban", "liar", "--dir", str(tmp_path)]) == 1
    assert "no node is running" in capsys.readouterr().err
