"""Pulled exchanges between real processes: sockets, engines and real clocks."""

import pytest

from tests.harness.processes import demo


@pytest.mark.real
@pytest.mark.slow
def test_four_nodes_that_pull_from_all_others_learn_the_digits(tmp_path):
    """Almost every request is answered, and no node has to skip a round."""
    settings = ("mix=gather", "overlay=pull", "overlay.k=3", "robust.f=1", "compress.select=full", "compress.response=fp16")
    chosen = [word for setting in settings for word in ("--set", setting)]
    table = demo(tmp_path, "--nodes", 4, "--rounds", 30, "--seed", 1, *chosen)
    assert [(row["state"], row["rounds"]) for row in table["nodes"]] == [("done", 30)] * 4
    assert 0.85 <= table["min"] <= table["mean"]
    asked = sum(sum(row["exchanges"].values()) for row in table["nodes"])
    assert sum(row["exchanges"]["committed"] for row in table["nodes"]) > 0.8 * asked
    assert 0.9 * 4 * 30 * 3 < asked <= 4 * 30 * 3
    assert sum(row["local_steps"] for row in table["nodes"]) > 0.9 * 4 * 30 * 20
    assert table["bytes_per_exchange"] < 0.7 * table["dense_bytes"]  # one vector of fp16, not two of float32
