"""`starling ban`, `unban` and `trust`: the request to the node, and the text that the user reads."""

import json

import pytest

from starling.gossip.errors import ConfigError
from starling.node.cli.main import main
from starling.node.cli.members import seconds
from starling.node.status import control
from tests.harness.cli_doubles import refused


@pytest.fixture
def asked(monkeypatch):
    """Record requests to a node that carries them out."""
    requests = []

    def request(run_dir, op, *, timeout_s=0.0, **fields):
        requests.append((op, fields))
        return {"peer": "12D3KooWevil", "standing": "ban", "shut_out_s": fields.get("for_s")}

    monkeypatch.setattr(control, "request", request)
    return requests


def test_a_ban_names_peer_duration_and_reason(asked, capsys):
    assert main(["ban", "evil", "--for", "24h", "--why", "spam"]) == 0
    assert main(["ban", "evil"]) == 0
    assert asked == [("ban", {"peer": "evil", "why": "spam", "for_s": 86400.0}), ("ban", {"peer": "evil", "why": ""})]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "banned 12D3KooWevil\n" * 2


def test_unban_and_trust_name_the_peer_they_found(asked, capsys):
    assert main(["unban", "evil"]) == 0
    assert main(["trust", "evil"]) == 0
    assert [op for op, _ in asked] == ["unban", "trust"]
    assert capsys.readouterr().err.count("12D3KooWevil") == 2


@pytest.mark.parametrize("op", ["ban", "unban", "trust", "revoke"])
def test_a_peer_that_the_node_does_not_know_is_wrong_input(op, capsys, monkeypatch):
    def request(*_arguments, **_fields):
        raise control.WrongInput("peer: no known peer is 'evil'; `starling peers` lists them")

    monkeypatch.setattr(control, "request", request)
    refused(capsys, [op, "evil"], "no known peer")


@pytest.mark.parametrize("op", ["ban", "unban", "trust"])
def test_json_is_for_programs(op, asked, capsys):
    assert main([op, "evil", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["peer"] == "12D3KooWevil"
    assert err == ""


def test_durations_may_have_units():
    for text, value in {"90s": 90.0, "30m": 1800.0, "1.5h": 5400.0, "7d": 604800.0, " 2 W ": 1209600.0}.items():
        assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "0s", "1y", "1e9d", "24hours", "999999d", "inf"])
def test_other_durations_are_one_line_with_an_example(text, asked, capsys):
    with pytest.raises(ConfigError, match="try `--for 24h`"):
        seconds(text)
    refused(capsys, ["ban", "evil", "--for", text or " "])
    assert asked == []


def test_without_a_node_it_says_how_to_start_one(tmp_path, capsys):
    refused(capsys, ["ban", "evil", "--dir", tmp_path], "holds no node")
    (tmp_path / "node.toml").touch()
    refused(capsys, ["ban", "evil", "--dir", tmp_path], "no node is running", code=1)
