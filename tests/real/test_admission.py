"""Admission with real processes and sockets: an invited demo, and proofs of work."""

import pytest

from tests.harness.processes import demo


@pytest.mark.real
@pytest.mark.acceptance
@pytest.mark.parametrize(
    "admission", [["--set", "admission.kind=invite"], ["--set", "admission.bits=6", "--set", "admission.memory_kib=1024"]]
)
def test_a_demo_with_controlled_nodes_ends_normally(tmp_path, admission):
    """Each node is a process with its own key; the creator issues invitations, and work is computed in a thread."""
    table = demo(tmp_path, "--nodes", 3, "--rounds", 20, "--seed", 1, *admission)
    assert [row["state"] for row in table["nodes"]] == ["done"] * 3
    assert all(row["exchanges"]["committed"] > 0 for row in table["nodes"])
