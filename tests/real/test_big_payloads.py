"""Three nodes with five million parameters on lines of 20 Mbit/s, in both paces: one command, and its figures.

    pytest -s -m acceptance tests/real/test_big_payloads.py

A local step sleeps for most of its time, as three engines at full speed have no core each here. First each trains alone, in a swarm of its
own and at the same time as the others; then all together, with overlap in steps pace.
"""

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul
from pathlib import Path
from statistics import fmean

import pytest

from tests.harness import slow_steps
from tests.harness.cables import Line
from tests.harness.namespaces import carried, lan
from tests.harness.processes import Shell, status_of, terminals, until

SECONDS = float(os.environ.get("STARLING_BIG_S", "120"))
ALONE_S = 40.0
NODES, LINE = 3, Line(20, delay_ms=5)
COMMITTED = 0.95
OVERHEAD = 1.05
KEPT = 0.97
WIRE = 0.85
WAITED_S = 0.02  # a request that waited longer for the responder's local steps came too early
POLL_S = 0.1
AGREED = (
    f"--set task.kind={slow_steps.KIND} --set task.batch_size=2 --set optimizer.kind=sgd --set optimizer.schedule=constant "
    "--set pace.rounds=0 --set pace.evaluate_every=1000000"
)
PACES = {"steps": "--set pace.kind=steps --set pace.overlap=true", "clock": "--set pace.kind=clock"}
OWN = "--no-lan --set trust=true --set threads=1 --set checkpoint_s=3600"

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.acceptance,
    pytest.mark.usefixtures("warm_engines"),
    pytest.mark.timeout(SECONDS + 600),
]


@dataclass
class Watched:
    """A node's statuses, the traffic of its connection, and the exchanges that ended meanwhile."""

    shell: Shell
    folder: Path
    statuses: list = field(default_factory=list)
    line: list[tuple[float, int, int]] = field(default_factory=list)
    ended: dict[tuple, object] = field(default_factory=dict)

    def look(self):
        self.line.append((time.time(), *carried(self.shell.process.pid)))
        if (now := status_of(self.folder)) is not None:
            self.statuses.append(now)
            self.ended.update(((it.peer, it.asked, it.number, it.time_s), it) for it in now.transactions)

    @property
    def steps_per_s(self):
        """Return the rate of local steps from the first change of the count to the last."""
        changes = [now for then, now in pairwise(self.statuses) if now.local_steps != then.local_steps]
        return (changes[-1].local_steps - changes[0].local_steps) / (changes[-1].time_s - changes[0].time_s)

    @property
    def me(self):
        return self.statuses[-1].peer

    def key(self, it):
        """Return the key of an exchange, equal at both ends: initiator, responder, number."""
        return (self.me, it.peer, it.number) if it.asked else (it.peer, self.me, it.number)

    def begins(self):
        """Return key -> when this node requested, or was ready to answer an early request."""
        found = {}
        for it in self.ended.values():
            waited_s = it.waited_s or 0.0
            if it.seconds and (it.asked or waited_s > WAITED_S):
                found[self.key(it)] = it.time_s - it.seconds + waited_s
        return found

    def wire(self, begins):
        """Return the share of time with an exchange due, when both ends were ready, and shares of the line's capacity used both ways.

        Bytes are all that the line carried: those of an early request count as if it had come in time.
        """
        (since, up, down), (until_s, up_now, down_now) = self.line[0], self.line[-1]
        spans = sorted((begins[key], it.time_s) for it in self.ended.values() if (key := self.key(it)) in begins)
        due_s, at = 0.0, since
        for begin, end in spans:
            due_s += max(0.0, end - max(begin, at))
            at = max(end, at)
        can = due_s * LINE.mbit * 1e6 / 8
        return due_s / (until_s - since), (up_now - up) / can, (down_now - down) / can


@contextmanager
def nodes(tmp_path, words, name, *, together):
    """Run nodes on hosts of their own, in one swarm or in one each."""
    slow_steps.write(tmp_path, width=1580, layers=2, seconds=0.15)
    quorum = NODES if together else 1
    with lan(NODES, LINE) as hosts, terminals() as terminal:
        what, watched = f"create {AGREED} {words} --set pace.quorum={quorum}", []
        for number, host in enumerate(hosts):
            folder = f"{name}{number}"
            shell = terminal(f"ip netns exec {host} starling {what} {OWN} --dir {folder}", tmp_path, folder)
            watched.append(Watched(shell, tmp_path / folder))
            if together and not number:
                what = f"join {shell.until(shell.first_line)}"
        until("they do not begin", lambda: all((it := status_of(each.folder)) and it.local_steps > 10 for each in watched), 240.0)
        yield watched


def watch(watched, seconds):
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for each in watched:
            each.look()
        time.sleep(POLL_S)


@pytest.mark.parametrize("pace", PACES)
def test_big_payloads_use_the_full_lines_and_do_not_slow_local_steps(tmp_path, pace):
    with nodes(tmp_path, PACES[pace], "alone", together=False) as lone:
        watch(lone, ALONE_S)
    with nodes(tmp_path, PACES[pace], "swarm", together=True) as swarm:
        until("no exchange", lambda: all(status_of(each.folder).exchanges.committed > 2 for each in swarm), 240.0)
        watch(swarm, SECONDS)
    committed = begun = sent = payload = 0
    begins: dict[tuple, float] = {}
    for each in swarm:
        for key, at in each.begins().items():
            begins[key] = max(at, begins.get(key, 0.0))
    dues, wires = [], []  # by node: the shares of the time and of the line
    for number, (alone, each) in enumerate(zip(lone, swarm, strict=True)):
        then, now = each.statuses[0], each.statuses[-1]
        did = [getattr(now.exchanges, it) - getattr(then.exchanges, it) for it in ("committed", "aborted", "timeout", "busy")]
        committed, begun = committed + did[0], begun + sum(did[:3])
        sent, payload = sent + now.bytes_sent - then.bytes_sent, payload + now.payload_bytes - then.payload_bytes
        due, up, down = each.wire(begins)
        dues.append(due)
        wires.append(up + down)
        print(  # noqa: T201
            f"node {number}: d = {now.parameters:,}, {did[0]} of {sum(did[:3])} exchanges, {did[3]} busy; {each.steps_per_s:.2f} steps a "
            f"second, alone {alone.steps_per_s:.2f}; an exchange due {due:.0%} of the time, and then {up:.0%} of the line sent, "
            f"{down:.0%} received"
        )
    wire = sum(map(mul, dues, wires)) / sum(dues)
    kept = fmean(each.steps_per_s for each in swarm) / fmean(each.steps_per_s for each in lone)
    print(  # noqa: T201
        f"{pace}: {committed / begun:.1%} committed; bytes {sent / payload:.3f} of payloads committed, "
        f"{payload / committed / 1e3:,.0f} kB each; "
        f"wire {wire:.0%} while exchanges are due ({fmean(dues):.0%} of the time); steps {kept:.3f} of alone; "
        f"load {os.getloadavg()}"
    )
    assert committed / begun >= COMMITTED
    assert sent <= OVERHEAD * payload
    assert wire >= WIRE
    assert kept >= KEPT
