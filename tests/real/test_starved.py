"""Nodes with almost no processor time: one command, and its figures.

    pytest -s -m acceptance tests/real/test_starved.py

STARLING_STARVED_S sets the duration, five minutes by default. Whole nodes; each with its engine has a thirtieth of a core.
"""

import os
import time
from collections import Counter

import pytest

from tests.harness.cgroups import limited_processor
from tests.harness.processes import ENDLESS, OWN, status_of, terminals, training, until

SECONDS = float(os.environ.get("STARLING_STARVED_S", "300"))
NODES, SHARE = 8, 1 / 30
AGREED = ENDLESS.replace("partition.shards=2", f"partition.shards={NODES}").replace("--set membership.suspicion_s=1", "")

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance, pytest.mark.timeout(SECONDS + 500)]


def said(folders, name):
    """Return the number of events with this name in each node's log."""
    return [(folder / "log.jsonl").read_text().count(f'"{name}"') for folder in folders]


def seconds_of(family):
    """Return the processor seconds of a process."""
    return sum(sum(it.cpu_times()[:2]) for it in family)


def test_nodes_with_a_thirtieth_of_a_core_declare_nobody_dead(tmp_path):
    folders = [tmp_path / str(index) for index in range(NODES)]
    with terminals() as terminal:
        nodes = [terminal(f"starling create {AGREED} {OWN} --shard 0 --dir 0", tmp_path, "0")]
        invite = nodes[0].until(nodes[0].first_line)
        nodes += [
            terminal(f"starling join {invite} {OWN} --shard {index} --dir {index}", tmp_path, str(index)) for index in range(1, NODES)
        ]
        until("they do not begin", lambda: all((now := training(it)) and now.members == NODES for it in folders), 240.0)
        before = [status_of(it) for it in folders]
        families = [node.family() for node in nodes]
        assert all(len(it) == 2 for it in families), "each a daemon and the engine that it started"
        died = said(folders, "peer_died")
        with limited_processor([[it.pid for it in family] for family in families], SHARE):
            worked = [seconds_of(it) for it in families]
            began, seen = time.monotonic(), Counter()
            while time.monotonic() - began < SECONDS:
                time.sleep(5.0)
                answers = [now for now in map(status_of, folders) if now]
                seen.update("dead" if any(it.state == "dead" for it in now.peers) else "whole" for now in answers)
            worked = [seconds_of(it) - then for it, then in zip(families, worked, strict=True)]
        after = [until("it does not answer", lambda it=it: status_of(it)) for it in folders]
        died = [now - then for then, now in zip(died, said(folders, "peer_died"), strict=True)]
        for number, (then, now) in enumerate(zip(before, after, strict=True)):
            print(  # noqa: T201
                f"node {number}: {now.round - then.round} rounds, {now.exchanges.committed - then.exchanges.committed} exchanges, "
                f"{died[number]} declared dead, {worked[number] / SECONDS:.4f} of a core"
            )
        print(f"{SECONDS:.0f} s, status answered {sum(seen.values())} times: {dict(seen)}, load {os.getloadavg()}")  # noqa: T201
    assert max(worked) <= 1.2 * SHARE * SECONDS, "they are not held to their share"
    assert sum(died) == 0
    assert not seen["dead"]
