"""Kills at random times of real processes: nodes, which return with their checkpoint, and engines of running nodes."""

import os
import signal
import time
from random import Random

import psutil
import pytest

from starling.robust.reputation import HARD
from tests.harness.processes import ENDLESS, OWN, status_of, terminals, training, until

NODES = 6
KILLS = int(os.environ.get("STARLING_KILLS", "40"))
AWAY = 2  # nodes at a time, at most
GONE_S = 20.0  # time until no edge with a dead node is left
AGREED = ENDLESS.replace("partition.shards=2", f"partition.shards={NODES}")

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance]


def killed(process):
    """SIGKILL the node's engine, if it has one now; return whether it had."""
    try:
        engines = psutil.Process(process.pid).children(recursive=True)
        for engine in engines:
            engine.kill()
    except psutil.NoSuchProcess:
        return False
    return bool(engines)


@pytest.mark.timeout(300 + 15 * KILLS)
def test_after_random_kills_all_nodes_commit_and_no_flow_of_dead_ones_remains(tmp_path):
    """At most two of six are away at a time; nodes may be killed while starting. `STARLING_KILLS` sets the number of kills."""
    chance, away, nodes = Random(1), dict[int, float](), {}
    folders = [tmp_path / str(index) for index in range(NODES)]
    with terminals() as terminal:
        nodes[0] = terminal(f"starling create {AGREED} {OWN} --shard 0 --dir 0", tmp_path, "0")
        invite = nodes[0].until(nodes[0].first_line)
        for index in range(1, NODES):
            nodes[index] = terminal(f"starling join {invite} {OWN} --shard {index} --dir {index}", tmp_path, str(index))
        until("they do not begin", lambda: all((now := training(it, beyond=2)) and now.members == NODES for it in folders))
        counts = {"node": 0, "engine": 0}
        number = 0
        while sum(counts.values()) < KILLS:  # an engine that has not started yet cannot be killed
            number += 1
            time.sleep(chance.expovariate(1.5))
            index = chance.choice(sorted(nodes.keys() - away.keys()))
            if len(away) == AWAY or chance.random() < 0.4:
                counts["engine"] += killed(nodes[index].process)
            else:
                os.kill(nodes[index].process.pid, signal.SIGKILL)
                nodes[index].process.wait()
                counts["node"] += 1
                away[index] = time.monotonic() + chance.uniform(0.0, 2.0)
            for back in [it for it, at in away.items() if at <= time.monotonic() or len(away) == AWAY]:
                nodes[back] = terminal(f"starling run --dir {back}", tmp_path, f"{back}-{number}")
                del away[back]
        for back in away:
            nodes[back] = terminal(f"starling run --dir {back}", tmp_path, f"{back}-last")
        until("not all are back", lambda: all((now := training(it)) and now.members == NODES for it in folders))
        before = [status_of(it) for it in folders]
        until(
            "some are stuck",
            lambda: all(
                (now := training(it, beyond=was.round)) and now.exchanges.committed >= was.exchanges.committed + 5
                for it, was in zip(folders, before, strict=True)
            ),
        )
        assert [peer for it in folders for peer in status_of(it).peers if peer.score >= HARD] == []  # soft faults may remain
        gone = before[-1].peer
        nodes[NODES - 1].kill()
        until(
            "an edge with the dead is left",
            lambda: all(
                (now := status_of(it)) and now.members == NODES - 1 and not any(peer.peer == gone and peer.edge for peer in now.peers)
                for it in folders[:-1]
            ),
            GONE_S,
        )
        left = [status_of(it) for it in folders[:-1]]
        until(
            "a survivor is stuck",
            lambda: all(
                (now := status_of(it)) and now.exchanges.committed >= was.exchanges.committed + 5
                for it, was in zip(folders[:-1], left, strict=True)
            ),
        )
