"""Nodes on slow connections, with a model that takes many seconds to send: one command, and its figures.

    pytest -s -m acceptance tests/real/test_thin_lines.py

STARLING_THIN_S sets the duration, ten minutes by default. A packet from host to host crosses two lines, each of which queues a tenth of a
second of packets, like a router. Round trips are those that status shows for each peer, updated by every probe; a repeated probe counts
from its first frame.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.harness.cables import Line
from tests.harness.namespaces import carried, lan
from tests.harness.processes import ROOT, Shell, status_of, terminals, training, until

SECONDS = float(os.environ.get("STARLING_THIN_S", "600"))
NODES, LINE, HIDDEN = 4, Line(1), 13_333
TRIP_S = 0.5
POLL_S = 0.2
BUSY = 0.5  # share of the line's one-way capacity between two samples: a payload is in flight

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.acceptance,
    pytest.mark.usefixtures("warm_engines"),
    pytest.mark.timeout(SECONDS + 400),
]


@dataclass
class Probes:
    """Round trips that one node shows, separated by whether its line was busy."""

    shell: Shell
    folder: Path
    last: dict[str, float] = field(default_factory=dict)
    trips: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    before: tuple[int, int] = (0, 0)

    def look(self, passed_s):
        now, bytes_now = status_of(self.folder), carried(self.shell.process.pid)
        moved = max(there - then for there, then in zip(bytes_now, self.before, strict=True))
        self.before = bytes_now
        for peer in now.peers if now else ():
            if peer.rtt_s is not None and self.last.get(peer.peer) != peer.rtt_s:
                self.last[peer.peer] = peer.rtt_s
                self.trips.append(peer.rtt_s)
                if moved >= BUSY * passed_s * LINE.mbit * 1e6 / 8:
                    self.busy.append(peer.rtt_s)


def shares(trips):
    """Return the shares in words, and the 99th percentile."""
    trips = sorted(trips)
    at = {share: trips[int(share * (len(trips) - 1))] for share in (0.5, 0.9, 0.99, 1.0)}
    return f"{len(trips)} probes, seconds by share: " + ", ".join(f"{it}: {at[it]:.3f}" for it in at), at[0.99]


@pytest.mark.parametrize("budget_bytes", [0, 1_000_000], ids=["as much as fits", "a megabyte"])
def test_on_megabit_links_payloads_delay_no_probe_and_cause_no_false_suspicion(tmp_path, budget_bytes):
    folders = [tmp_path / str(number) for number in range(NODES)]
    what = f"create {ROOT}/examples/digits.toml --set task.hidden={HIDDEN} --set pace.rounds=0 --set optimizer.schedule=constant"
    what += f" --set compress.budget_bytes={budget_bytes}" * bool(budget_bytes)
    with lan(NODES, LINE) as hosts, terminals() as terminal:
        nodes = []
        for number, host in enumerate(hosts):
            line = f"ip netns exec {host} starling {what} --shard {number} --no-lan --dir {number}"
            nodes.append(terminal(line, tmp_path, str(number)))
            if not number:
                what = f"join {nodes[0].until(nodes[0].first_line)}"
        until("they do not begin", lambda: all((now := training(it)) and now.members == NODES for it in folders), 240.0)
        first = [status_of(it) for it in folders]
        watched = [Probes(*each) for each in zip(nodes, folders, strict=True)]
        began = at = time.monotonic()
        while at - began < SECONDS:
            time.sleep(POLL_S)
            before, at = at, time.monotonic()
            for each in watched:
                each.look(at - before)
        ended = [until("it does not answer", lambda it=it: status_of(it)) for it in folders]
        died = [(folder / "log.jsonl").read_text().count('"peer_died"') for folder in folders]
    for number, (then, now) in enumerate(zip(first, ended, strict=True)):
        did = now.exchanges
        begun = did.committed + did.aborted + did.timeout
        wire = 8e-6 * (now.bytes_sent - then.bytes_sent) / SECONDS
        print(  # noqa: T201
            f"node {number}: d = {now.parameters:,}, round {now.round}, {did.committed} of {begun} exchanges, {wire:.2f} Mbit/s sent, "
            f"{died[number]} taken for dead"
        )
    every, most = shares([trip for each in watched for trip in each.trips])
    busy, most_busy = shares([trip for each in watched for trip in each.busy])
    print(f"{every}\nwith a payload under way: {busy}; load {os.getloadavg()}")  # noqa: T201
    assert sum(died) == 0
    assert most < TRIP_S
    assert most_busy < TRIP_S
