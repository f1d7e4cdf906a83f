"""Every command that requests something of a running node: its output fits the schema, and the request is carried out."""

import signal

import pytest

from starling.node.status import control
from tests.harness.processes import ENDLESS, OWN, PATIENCE_S, starling, terminals, training
from tests.harness.schemas import valid

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("warm_engines")]

INVITED = "--preset vouched --set admission.kind=invite"


def test_a_creator_can_inspect_ban_invite_and_revoke(tmp_path):
    """Two nodes of an invited swarm; the creator gets every request, and the member is revoked in the end."""
    place, other = tmp_path / "creator", tmp_path / "member"

    def ask(name, *words):
        return valid(name, starling(*words, "--dir", "creator", "--json", cwd=tmp_path))

    with terminals() as terminal:
        creator = terminal(f"starling create {ENDLESS} {INVITED} {OWN} --shard 0 --dir creator --json", tmp_path, "f")
        created = valid("create", creator.until(creator.first_line))
        member = terminal(f"starling join {created['invite']} {OWN} --shard 1 --dir member --json", tmp_path, "m")
        joined = valid("join", member.until(member.first_line))
        assert joined["swarm"] == created["swarm"]
        liar = joined["peer"]
        member.until(lambda: training(other, beyond=1))
        creator.until(lambda: training(place, beyond=1))

        assert ask("status", "status")["peer"] == created["peer"]
        assert [row["peer"] for row in ask("peers", "peers")["peers"]] == [liar]
        assert ask("eval", "eval")["metric"] == "accuracy"
        exported = ask("export", "export", str(tmp_path / "m.safetensors"))
        assert (tmp_path / "m.safetensors").stat().st_size == exported["bytes"]
        assert ask("manifest-show", "manifest", "show")["swarm"] == created["swarm"]
        assert ask("config-show", "config", "show", "node")["node"]["shard"] == 0
        assert ask("invite", "invite", "--days", "3")["number"] == 1

        watch = terminal("starling status --watch --json --dir creator", tmp_path, "watch")
        first = valid("status", watch.until(watch.first_line))
        watch.until(lambda: watch.out.count("\n") > 1)
        assert first["swarm"] == created["swarm"]
        logs = terminal("starling logs -f --json --dir creator", tmp_path, "logs")
        assert valid("logs", logs.until(logs.first_line))["level"] == "info"

        assert ask("trust", "trust", liar)["trusted"] is True
        assert ask("unban", "unban", liar[-8:])["trusted"] is False
        assert ask("revoke", "revoke", liar)["removed"] == [liar]
        assert ask("ban", "ban", liar, "--for", "1h", "--why", "a test")["standing"] == "ban"
        logs.until(lambda: '"peer_ban"' in logs.out)

        for each in (watch, logs):
            each.process.send_signal(signal.SIGINT)
            assert each.process.wait(PATIENCE_S) == 0
            assert each.err == ""
        for each in logs.out.splitlines():
            valid("logs", each)
        starling("leave", "--dir", "creator", cwd=tmp_path)
        assert creator.process.wait(PATIENCE_S) == 0
    with pytest.raises(control.NotRunning):
        control.status(place)


def test_status_watch_continues_through_a_restart_of_its_node(tmp_path):
    place = tmp_path / "n"
    options = "--set pace.rounds=0 --set pace.quorum=1 --set optimizer.schedule=constant"
    with terminals() as terminal:
        node = terminal(f"starling create {options} {OWN} --dir n", tmp_path, "n")
        node.until(lambda: training(place))
        watch = terminal("starling status --watch --dir n", tmp_path, "watch")
        watch.until(lambda: "training" in watch.out)
        node.kill()
        watch.until(lambda: "! the node in n went away" in watch.out or "! no node is running in n" in watch.out)
        seen = len(watch.out)
        terminal("starling run --dir n", tmp_path, "n2")
        watch.until(lambda: "training, resumed" in watch.out[seen:])
        watch.process.send_signal(signal.SIGINT)
        assert watch.process.wait(PATIENCE_S) == 0
        assert watch.err == ""
