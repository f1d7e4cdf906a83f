"""`starling demo` with real processes on loopback: killed on purpose, and cleaned up afterwards."""

import pytest

from tests.harness.processes import demo, status_of, terminals


@pytest.mark.real
@pytest.mark.slow
def test_four_nodes_agree_on_a_good_model_for_a_fraction_of_the_bytes(tmp_path):
    """Each has a different part of the digits, and would know only those alone."""
    table = demo(tmp_path, "--nodes", 4, "--rounds", 60, "--seed", 1)
    assert [(row["state"], row["rounds"], row["local_steps"]) for row in table["nodes"]] == [("done", 60, 1200)] * 4
    assert table["metric"] == "accuracy"
    assert table["min"] >= 0.9
    assert table["min"] - 1e-12 <= table["mean"] <= table["max"] + 1e-12, "the mean of equal numbers is rounded"
    assert table["bytes_per_exchange"] < table["dense_bytes"] / 3
    assert table["consensus_distance"] < 0.1
    assert not any(row["rejoined"] or row["joined_late"] for row in table["nodes"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
@pytest.mark.slow
def test_a_killed_node_resumes_and_a_late_node_joins(tmp_path):
    """SIGKILL in the middle, a restart from the checkpoint, and a fifth node that joins late."""
    table = demo(tmp_path, "--nodes", 4, "--rounds", 140, "--seed", 1, "--kill", "2@0.2", "--join-late", 0.3)
    *first, late = table["nodes"]
    assert [row["state"] for row in table["nodes"]] == ["done"] * 5
    assert [row["rejoined"] for row in first] == [False, False, True, False]
    assert late["joined_late"]
    assert not any(row["joined_late"] for row in first)
    assert abs(late["value"] - table["mean"]) <= 0.05
    assert abs(first[2]["value"] - table["mean"]) <= 0.05
    assert table["mean"] >= 0.85  # no other node has their shards


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.acceptance
def test_a_byzantine_node_is_named_banned_and_not_waited_for(tmp_path):
    """NaN in every payload: its peers learn without it, and the summary covers them only."""
    table = demo(tmp_path, "--nodes", 4, "--rounds", 30, "--seed", 1, "--byzantine", "1:nan", "--set", "pace.max_wait_s=1")
    assert [row["byzantine"] for row in table["nodes"]] == [False, False, False, True]
    *honest, byzantine = table["nodes"]
    assert [row["state"] for row in honest] == ["done"] * 3
    assert byzantine["exchanges"]["committed"] == 0
    assert table["mean"] == pytest.approx(sum(row["value"] for row in honest) / 3)
    assert table["min"] >= 0.8


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.acceptance
def test_two_crews_of_three_count_as_two_members(tmp_path):
    """The quorum counts crews; counting nodes would wait for ever."""
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(32 + (i * i % 97 + i % 13) % 90 for i in range(20_000)))
    model = {"path": text, "width": 32, "layers": 3, "context": 32, "tied": "false"}
    keys = {f"task.{key}": value for key, value in model.items()} | {"crew.stages": 3, "pace.local_steps": 5, "partition": "iid"}
    settings = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    table = demo(tmp_path, "--task", "text", "--nodes", 6, "--rounds", 6, *settings)
    assert [(row["state"], row["local_steps"]) for row in table["nodes"]] == [("done", 30)] * 6
    assert {row["exchanges"]["committed"] for row in table["nodes"]} == {6}
    assert 0.0 < table["consensus_distance"] < 1.0


@pytest.mark.real
@pytest.mark.slow
def test_ctrl_c_in_the_middle_leaves_nothing_behind(tmp_path):
    """No node and no engine remain, and the exit code gives the reason."""
    with terminals() as terminal:
        running = terminal("starling demo --nodes 2 --rounds 100000 --no-tui --dir kept", tmp_path, "demo")
        running.until(lambda: (now := status_of(tmp_path / "kept" / "node-1")) and now.round > 2)
        assert (
            len(running.family()) == 9
        )  # three nodes, one of them the lone node, an engine each, and the two servers they are forked from
        assert running.ctrl_c() == 130
        assert "interrupted" in running.err
        assert running.out == ""
    assert (tmp_path / "kept" / "node-0" / "log.jsonl").exists()


@pytest.mark.real
@pytest.mark.acceptance
def test_a_byzantine_vouched_member_is_banned_by_command_and_the_others_recover(tmp_path):
    """The attack's effect before the ban disappears, and no node waits for the attacker afterwards."""
    options = ("--nodes", 8, "--rounds", 100, "--seed", 1, "--preset", "vouched")
    clean = demo(tmp_path, *options)
    table = demo(tmp_path, *options, "--byzantine", "1:foe", "--ban-at", 0.4)
    *honest, byzantine = table["nodes"]
    assert [row["state"] for row in honest] == ["done"] * 7
    assert (byzantine["state"], byzantine["byzantine"]) == ("banned", True)
    assert 40 <= table["ban"]["round"] < 100
    assert table["ban"]["min"] <= table["ban"]["mean"] < clean["mean"] - 0.05
    assert table["mean"] > clean["mean"] - 0.05
    assert all(row["exchanges"]["timeout"] < 20 for row in honest)
    assert clean["ban"] is None
