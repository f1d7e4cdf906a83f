"""Two nodes run as volunteers would, with killed engines, killed nodes, and a surviving network."""

import json
import os
import signal

import psutil
import pytest

from starling.node.status import final
from tests.harness.processes import ENDLESS, OWN, PATIENCE_S, PROMISE_S, lives, starling, status_of, terminals, training, until

pytestmark = [pytest.mark.real, pytest.mark.slow]


def engine_of(node):
    (engine,) = psutil.Process(node.process.pid).children(recursive=True)
    assert "starling.node.engine.process" in engine.cmdline()
    return engine


def whole(node, run_dir):
    """Return the status once it has the resources of both processes and the folder, and a committed exchange."""
    now = training(run_dir)
    if now is None or now.resources.cpu is None or now.resources.disk_bytes is None:
        return None
    if now.resources.memory_bytes <= engine_of(node).memory_info().rss:
        return None
    return now if any(it.outcome == "committed" and it.bytes_received > 0 for it in now.transactions) else None


@pytest.mark.acceptance
def test_a_killed_node_restarts_with_its_identity_and_the_others_go_on(tmp_path):
    """A dead engine is replaced under a running node; a killed node takes its engine along, and resumes from its checkpoint."""
    creator_dir, joiner_dir = tmp_path / "creator", tmp_path / "joiner"
    with terminals() as terminal:
        creator = terminal(f"starling create {ENDLESS} {OWN} --shard 0 --dir creator", tmp_path, "f")
        invite = creator.until(creator.first_line)
        joiner = terminal(f"starling join {invite} {OWN} --shard 1 --dir joiner", tmp_path, "j")
        first = joiner.until(lambda: training(joiner_dir, beyond=5))
        seen = joiner.until(lambda: whole(joiner, joiner_dir))
        assert (seen.resources.disk_bytes > 0, seen.resources.gpu) == (True, None)
        assert (len(seen.ranks), seen.links) == (2, ((0, 1),))
        assert seen.distance is not None
        assert seen.paced_per_s is not None
        assert first.members == 2
        assert not first.rejoined
        now = json.loads(starling("invite", "--json", "--dir", "creator", cwd=tmp_path))
        assert {address.split("/")[-1] for address in now["bootstrap"]} == {training(creator_dir).peer, first.peer}

        engine = engine_of(joiner)
        os.kill(engine.pid, signal.SIGKILL)
        mended = until("no new engine", lambda: (now := training(joiner_dir)) and now.engine_restarts == 1 and now)
        assert mended.peer == first.peer
        until("it does not train on", lambda: training(joiner_dir, beyond=mended.round))
        until("no checkpoint", (joiner_dir / "checkpoint.safetensors").exists)

        engine = engine_of(joiner)
        joiner.kill()
        until("the engine outlived its node", lambda: not lives(engine), PROMISE_S)
        until("the death was not noticed", lambda: (now := training(creator_dir)) and now.members == 1)
        assert any(event.name == "peer_died" for event in status_of(creator_dir).events)
        alone = training(creator_dir).round
        until("the other stopped", lambda: training(creator_dir, beyond=alone))

        joiner = terminal("starling run --dir joiner", tmp_path, "j2")
        again = joiner.until(lambda: training(joiner_dir, beyond=first.round))
        assert again.rejoined
        assert (again.peer, again.addresses) == (first.peer, first.addresses)
        until("they do not meet again", lambda: (now := training(joiner_dir)) and now.exchanges.committed > 2)
        assert joiner.ctrl_c() == 0
        assert creator.ctrl_c() == 0
    for run_dir in (creator_dir, joiner_dir):
        assert not (run_dir / "control.sock").exists()


@pytest.mark.acceptance
def test_a_stranger_s_manifest_runs_code_of_this_machine_only_if_its_owner_agrees(tmp_path):
    """The code is installed, but the creator chose it: `join` refuses before importing anything, and leaves no partial node."""
    with terminals() as terminal:
        creator = terminal(
            f"starling create {ENDLESS} --set task=starling.node.tasks.digits:Digits {OWN} --shard 0 --dir creator", tmp_path, "f"
        )
        invite = creator.until(creator.first_line)
        refused = terminal(f"starling join {invite} {OWN} --shard 1 --dir joiner", tmp_path, "j")
        assert refused.process.wait(PATIENCE_S) == 2
        *_, words = refused.err.splitlines()
        assert words.startswith("starling: task.kind: this swarm wants to run 'starling.node.tasks.digits:Digits'")
        assert "--set trust=true" in words
        assert not (tmp_path / "joiner" / "node.toml").exists()

        command = f"starling join {invite} {OWN} --set trust=true --dir joiner"
        wrong_shard = terminal(f"{command} --shard 9", tmp_path, "j1")
        assert wrong_shard.process.wait(PATIENCE_S) == 2
        assert "shard: must be < partition.shards = 2, got 9" in wrong_shard.err

        agreed = terminal(f"{command} --shard 1", tmp_path, "j2")
        agreed.until(lambda: training(tmp_path / "joiner"))
        assert agreed.ctrl_c() == 0
        assert creator.ctrl_c() == 0


def test_a_closed_terminal_stops_a_node_in_order_and_its_directory_says_how_it_ended(tmp_path):
    """On SIGHUP, as when a window is closed: a checkpoint, a farewell, and the shell's exit status 129."""
    run_dir = tmp_path / "n"
    with terminals() as terminal:
        node = terminal(f"starling create {ENDLESS} --set pace.quorum=1 {OWN} --dir n", tmp_path, "n")
        node.until(lambda: training(run_dir, beyond=2))
        node.process.send_signal(signal.SIGHUP)
        assert node.process.wait(PATIENCE_S) == 129
    left = final.load(run_dir)
    assert (left.ended, left.snapshot.state) == ("left", "leaving")
    assert left.snapshot.round > 2
    assert '"event":"left"' in (run_dir / "log.jsonl").read_text()
