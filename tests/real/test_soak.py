"""A long-running swarm of processes under churn: memory does not grow in the nodes that stay.

STARLING_SOAK_S sets the duration, for instance an hour; three minutes by default.
"""

import os
import signal
import time
from dataclasses import dataclass, field
from statistics import median

import psutil
import pytest

from tests.harness.processes import ENDLESS, OWN, terminals, training, until

SECONDS = float(os.environ.get("STARLING_SOAK_S", "180"))
NODES, STAYING = 8, 4
EVERY_S, AWAY_S, SAMPLE_S = 30.0, 10.0, 2.0
WARM = 1 / 3  # share of the time after which everything has happened once
FLAT = 0.05
AGREED = ENDLESS.replace("partition.shards=2", f"partition.shards={NODES}")

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance, pytest.mark.timeout(SECONDS + 400)]


@dataclass
class Watched:
    """Resources of both processes of a node that stays, sampled while no node is away or starting."""

    node: psutil.Process
    at: list[float] = field(default_factory=list)
    taken: dict[str, list[int]] = field(default_factory=dict)

    def sample(self, now, at):
        (engine,) = self.node.children(recursive=True)
        own = {
            "resident of the daemon": self.node.memory_info().rss,
            "resident of the engine": engine.memory_info().rss,
            "files": self.node.num_fds(),
            "sockets": len(self.node.net_connections(kind="all")),
            "threads": self.node.num_threads(),
            "tasks": now.resources.tasks,
        }
        self.at.append(at)
        for name, value in own.items():
            self.taken.setdefault(name, []).append(value)

    def medians(self, name):
        """Return medians of half of the time after warming up, and of the last quarter."""
        begin, last = SECONDS * WARM, SECONDS * (1.0 - (1.0 - WARM) / 4)
        early = [it for it, at in zip(self.taken[name], self.at, strict=True) if begin <= at < begin + (last - begin) / 2]
        late = [it for it, at in zip(self.taken[name], self.at, strict=True) if at >= last]
        return median(early), median(late)


def test_memory_of_long_running_nodes_does_not_grow_under_churn(tmp_path):
    """Every half minute one of eight is killed or leaves, and returns ten seconds later; memory stays within five percent."""
    folders = [tmp_path / str(index) for index in range(NODES)]

    def all_here():
        return all((now := training(it)) and now.members == NODES for it in folders)

    with terminals() as terminal:
        nodes = {0: terminal(f"starling create {AGREED} {OWN} --shard 0 --dir 0", tmp_path, "0")}
        invite = nodes[0].until(nodes[0].first_line)
        for index in range(1, NODES):
            nodes[index] = terminal(f"starling join {invite} {OWN} --shard {index} --dir {index}", tmp_path, str(index))
        until("they do not begin", all_here, 180.0)
        watched = [Watched(psutil.Process(nodes[index].process.pid)) for index in range(STAYING)]
        began, away, changes, due = time.monotonic(), None, 0, EVERY_S / 2
        while (at := time.monotonic() - began) < SECONDS:
            if away is None and at >= due:
                away, back, due = STAYING + changes % (NODES - STAYING), at + AWAY_S, due + EVERY_S
                nodes[away].process.send_signal(signal.SIGKILL if changes % 2 else signal.SIGINT)
                nodes[away].process.wait(30.0)
                changes += 1
            elif away is not None and at >= back:
                nodes[away] = terminal(f"starling run --dir {away}", tmp_path, f"{away}-{changes}")
                away = None
            if away is None:
                for it, folder in zip(watched, folders[:STAYING], strict=True):
                    if now := training(folder):
                        it.sample(now, at)
            time.sleep(SAMPLE_S)
        assert changes >= SECONDS / EVERY_S - 1
        if away is not None:
            nodes[away] = terminal(f"starling run --dir {away}", tmp_path, f"{away}-{changes}")
        until("they do not find each other again", all_here, 180.0)
        grown = []
        for index, it in enumerate(watched):
            for name in it.taken:
                before, after = it.medians(name)
                most = before * (1.0 + FLAT) if name.startswith("resident") else before + 2
                print(f"node {index}, {name}: {before:,.0f} then {after:,.0f}")  # noqa: T201 - what a long run is for
                if after > most:
                    grown.append(f"node {index}, {name}: {before:,.0f} then {after:,.0f}")
        assert not grown, grown
