"""Two ranks of a training, in processes as torchrun starts them: one member, and one rank that follows it."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from starling.integrations import distributed
from starling.node.node_handle import Attached
from starling.node.script import swarm
from starling.node.status.control import ControlError
from starling.node.status.final import load
from tests.harness.processes import until
from tests.harness.texts import words

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0  # seconds for starting processes and their imports on a busy machine
CTRL_C_S, DEAD_S = 4.0, 5.0  # seconds in which a waiting rank receives Ctrl-C, and rank 0 notices that another rank is gone
GONE_S = 20.0  # seconds for processes to end on a busy machine; far below the group's timeout of a minute
NEEDS = {"accelerated": "accelerate", "trainer": "transformers", "lightning": "lightning"}
CASES = [
    *words(
        "rounds views clock clock_of_shards lost over state created refused unequal shards copies shards_of_adamw copies_of_shards",
        "memories_of_shards refused_shards accelerated interrupted",
    )
]

pytestmark = [pytest.mark.acceptance, pytest.mark.real, pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")]


def environment(port):
    """Return the environment of two ranks, without the number of the rank."""
    return {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def trains(node):
    with suppress(ControlError):  # it is not up yet
        return node.running and node.status().round >= 3


def missing(case):
    return case in NEEDS and importlib.util.find_spec(NEEDS[case]) is None


def ran(folder, *cases):
    """Run cases in two ranks; return the seconds of each rank by case, and the standard error of both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = environment(port)
    command = [sys.executable, "-m", "tests.integrations.ranks", str(folder), *cases]
    ranks = [
        subprocess.Popen(
            command, cwd=ROOT, env={**shared, "RANK": rank, "LOCAL_RANK": rank}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in ("0", "1")
    ]
    try:
        said = [each.communicate(timeout=PATIENCE_S) for each in ranks]
    except subprocess.TimeoutExpired:
        for each in ranks:
            each.kill()
        said = [each.communicate() for each in ranks]
    lines = [[json.loads(line) for line in out.splitlines() if line.startswith('{"case"')] for out, _ in said]
    took = [{each["case"]: each["took_s"] for each in of_rank} for of_rank in lines]
    return took, "".join(errors for _, errors in said)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Return the results of all cases, run in one pair of processes, since each imports torch."""
    return ran(tmp_path_factory.mktemp("ranks"), *(each for each in CASES if not missing(each)))


@pytest.mark.parametrize("case", CASES)
def test_cases_of_two_ranks_pass(outcome, case):
    """The assertions are in `tests.integrations.ranks`."""
    if missing(case):
        pytest.skip(f"needs {NEEDS[case]}")
    took, errors = outcome
    assert [case in each for each in took] == [True, True], errors


def test_ctrl_c_in_a_waiting_rank_also_ends_rank_0_s_wait(outcome):
    rank_0, rank_1 = (each["interrupted"] for each in outcome[0])
    assert 0.5 <= rank_1 <= CTRL_C_S
    assert rank_0 <= rank_1 + DEAD_S


@pytest.mark.acceptance
@pytest.mark.parametrize("case", ["trainer", "lightning"])
def test_trainers_of_two_ranks(tmp_path, case):
    if missing(case):
        pytest.skip(f"needs {NEEDS[case]}")
    took, errors = ran(tmp_path, case)
    assert [case in each for each in took] == [True, True], errors


def test_a_killed_rank_ends_the_other_ranks_and_the_node(tmp_path):
    """The script has a node. Rank 0 notices the death by its collective, and the node by rank 0; the node leaves in order."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = [sys.executable, "-m", "tests.integrations.scripts.ranks", str(tmp_path / "node"), "0", "ddp", "--quorum=1"]
    shared = environment(port)
    with (tmp_path / "errors").open("wb") as errors:
        ranks = [
            subprocess.Popen(script, cwd=ROOT, env={**shared, "RANK": rank, "LOCAL_RANK": rank}, stdout=errors, stderr=errors)
            for rank in ("0", "1")
        ]
    try:
        node = Attached(tmp_path / "node")
        until("no training", partial(trains, node), PATIENCE_S)
        ranks[1].kill()
        killed = time.monotonic()
        assert ranks[0].wait(PATIENCE_S)
        until("the node goes on", lambda: not node.running)
        assert time.monotonic() - killed <= GONE_S
        assert load(tmp_path / "node").ended == "left"
    finally:
        for each in ranks:
            each.kill()
            each.wait()


@pytest.mark.parametrize(("ranks", "kind"), [(None, "one"), (1, "one"), (2, "several")])
def test_the_distributed_swarm_is_chosen_for_several_ranks(monkeypatch, ranks, kind):
    def kinds(name):
        class Made:
            def __init__(self, *given, **keys):
                self.made = (name, "joined", given, keys)

            @classmethod
            def create(cls, *given, **keys):
                return (name, "created", given, keys)

        return Made

    monkeypatch.setattr(dist, "is_initialized", lambda: ranks is not None)
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    monkeypatch.setattr(swarm, "Swarm", kinds("one"))
    monkeypatch.setattr(distributed, "Swarm", kinds("several"))
    assert distributed.join("run", "INVITE", model=1).made == (kind, "joined", ("run", "INVITE"), {"model": 1})
    assert distributed.create("run", model=1) == (kind, "created", ("run",), {"model": 1})
