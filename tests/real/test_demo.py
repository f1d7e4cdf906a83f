"""`starling demo` as it is: real processes on loopback, hurt on purpose, and gone afterwards."""

import pytest

from starling.node.cli.main import main
from tests.harness.processes import demo, terminals, told


@pytest.mark.real
@pytest.mark.slow
def test_four_nodes_agree_on_a_good_model_for_a_fraction_of_the_bytes(tmp_path):
    """Each holds another part of the digits; alone it would know only those."""
    table = demo(tmp_path, "--nodes", 4, "--rounds", 60, "--seed", 1)
    assert [(row["state"], row["rounds"], row["local_steps"]) for row in table["nodes"]] == [("done", 60, 1200)] * 4
    assert table["metric"] == "accuracy"
    assert 0.9 <= table["min"] <= table["mean"] <= table["max"]
    assert table["bytes_per_exchange"] < table["dense_bytes"] / 3
    assert table["consensus_distance"] < 0.1
    assert not any(row["rejoined"] or row["joined_late"] for row in table["nodes"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
@pytest.mark.slow
def test_a_killed_node_resumes_and_a_late_one_catches_up(tmp_path):
    """SIGKILL in the middle, a restart from the checkpoint, and a fifth node that nobody had planned for."""
    table = demo(tmp_path, "--nodes", 4, "--rounds", 240, "--seed", 1, "--kill", "2@0.2", "--join-late", 0.3)
    *first, late = table["nodes"]
    assert [row["state"] for row in table["nodes"]] == ["done"] * 5
    assert [row["rejoined"] for row in first] == [False, False, True, False]
    assert late["joined_late"]
    assert not any(row["joined_late"] for row in first)
    assert abs(late["value"] - table["mean"]) <= 0.05
    assert abs(first[2]["value"] - table["mean"]) <= 0.05
    assert table["mean"] >= 0.85  # nobody else has what the dead and the late know


@pytest.mark.real
@pytest.mark.slow
def test_a_liar_is_named_shut_out_and_not_waited_for(tmp_path):
    """NaN in every payload: its peers learn without it, and the summary is theirs alone."""
    table = demo(
        tmp_path, "--nodes", 4, "--rounds", 30, "--seed", 1, "--byzantine", "1:nan", "--set", "pace.max_wait_s=1"
    )
    assert [row["byzantine"] for row in table["nodes"]] == [False, False, False, True]
    *honest, liar = table["nodes"]
    assert [row["state"] for row in honest] == ["done"] * 3
    assert liar["exchanges"]["committed"] == 0
    assert table["mean"] == pytest.approx(sum(row["value"] for row in honest) / 3)
    assert table["min"] >= 0.8


@pytest.mark.real
@pytest.mark.slow
def test_ctrl_c_in_the_middle_leaves_nothing_behind(tmp_path):
    """No node, no engine, and an exit code that says why."""
    with terminals() as terminal:
        running = terminal("starling demo --nodes 2 --rounds 100000 --no-tui --dir kept", tmp_path, "demo")
        running.until(lambda: (now := told(tmp_path / "kept" / "node-1")) and now.round > 2)
        assert len(running.family()) == 5  # two nodes with an engine each
        assert running.ctrl_c() == 130
        assert "interrupted" in running.err
        assert running.out == ""
    assert (tmp_path / "kept" / "node-0" / "log.jsonl").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nodes", "1"],
        ["--nodes", "many"],
        ["--kill", "9@0.5"],
        ["--kill", "soon"],
        ["--join-late", "1.5"],
        ["--rounds", "0"],
        ["--rounds", "5", "--seconds", "5"],
        ["--task", "digit"],
        ["--task", "text"],
        ["--set", "pace.round=5"],
        ["--set", "mix=average"],
    ],
    ids=" ".join,
)
def test_wrong_input_is_one_line_on_standard_error_and_exit_code_2(arguments, capsys):
    """Before any process is started."""
    assert main(["demo", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("starling: ")
    assert said.err.count("\n") == 1


@pytest.mark.real
@pytest.mark.acceptance
def test_a_vouched_member_that_lies_is_banned_by_command_and_the_others_recover(tmp_path):
    """Whoever invited it finds out in the end; what it did until then must not stay, and nobody waits for it afterwards."""
    options = ("--nodes", 8, "--rounds", 100, "--seed", 1, "--preset", "vouched")
    clean = demo(tmp_path, *options)
    table = demo(tmp_path, *options, "--byzantine", "1:foe", "--ban-at", 0.4)
    *honest, liar = table["nodes"]
    assert [row["state"] for row in honest] == ["done"] * 7
    assert (liar["state"], liar["byzantine"]) == ("banned", True)
    assert 40 <= table["ban"]["round"] < 100
    assert table["ban"]["min"] <= table["ban"]["mean"] < clean["mean"] - 0.05
    assert table["mean"] > clean["mean"] - 0.05
    assert all(row["exchanges"]["timeout"] < 20 for row in honest)
    assert clean["ban"] is None
