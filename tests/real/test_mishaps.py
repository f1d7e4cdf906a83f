"""The mishaps of `benchmarks/mishaps` with real processes, on hosts of their own or in containers: one command, and its figures.

    pytest -s -m acceptance tests/real/test_mishaps.py

Files, bounds and times are those of `tests/swarm/test_mishaps.py` in virtual time. A local step sleeps for nearly all of its time, since
eight nodes on a few cores would otherwise affect each other. Clock jumps are left out: one machine has one clock.
"""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import slow_steps
from tests.harness.containers import containers
from tests.harness.mishaps import AFTER_S, LOCAL_STEPS, MEASURED_S, STEP_S, Outcome, names, read
from tests.harness.namespaces import CONGESTION, lan, ran
from tests.harness.processes import status_of, terminals, until

PLAYED = [name for name in names() if all(it.kind != "clock" for it in read(name).mishaps)]
NETWORK = "10.96.0"  # as of `lan`
POLL_S = 0.1
BEGIN_S = 240.0
AGREED = (
    f"--set task.kind={slow_steps.KIND} --set task.batch_size=4 --set pace.rounds=0 --set pace.local_steps={LOCAL_STEPS} "
    "--set pace.max_wait_s=2 --set pace.evaluate_every=1000000 --set optimizer.schedule=constant"
)

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.acceptance,
    pytest.mark.usefixtures("warm_engines"),
    pytest.mark.timeout(2400),
]


class Hosts:
    """Namespaces on one local network. Frames that a host must not receive are sent to a MAC address that no host has."""

    def __init__(self, hosts):
        self.hosts = hosts

    def _lose(self, senders, receivers, *, on):
        for sender in senders:
            lines = [
                f"neigh replace {NETWORK}.{it + 1} lladdr 02:00:00:00:00:01 nud permanent dev eth0\n"
                if on
                else f"neigh del {NETWORK}.{it + 1} dev eth0\n"
                for it in receivers
            ]
            ran("ip", "-n", self.hosts[sender], "-batch", "-", stdin="".join(lines))

    def _others(self, nodes):
        return [it for it in range(len(self.hosts)) if it not in nodes]

    def cut(self, nodes, *, on):
        self._lose(nodes, self._others(nodes), on=on)
        self._lose(self._others(nodes), nodes, on=on)

    def mute(self, nodes, *, on):
        self._lose(nodes, self._others(nodes), on=on)

    def sleep(self, nodes, *, on):
        for node in nodes:
            for pid in map(int, ran("ip", "netns", "pids", self.hosts[node]).split()):
                os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    def move(self, nodes, *, on):
        assert on
        for node in nodes:
            old, new = f"{NETWORK}.{node + 1}", f"{NETWORK}.{node + 101}"
            at = ("-n", self.hosts[node])
            ran("ip", *at, "addr", "del", f"{old}/24", "dev", "eth0")
            ran("ip", *at, "addr", "add", f"{new}/24", "dev", "eth0")
            ran("ip", *at, "route", "change", f"{NETWORK}.0/24", "dev", "eth0", "src", new, *CONGESTION)
            ran("ip", *at, "route", "replace", "224.0.0.0/4", "dev", "eth0")


class Play:
    """A running story."""

    def __init__(self, story, hosts, folders):
        self.story, self.hosts, self.folders = story, hosts, folders
        self.peers = [status_of(folder).peer for folder in folders]
        self.on = [False] * len(story.mishaps)
        self.began = time.monotonic()

    @property
    def now(self):
        return time.monotonic() - self.began

    def happen(self):
        """Begin and end the events that are due."""
        for number, it in enumerate(self.story.mishaps):
            on = self.now >= it.at_s if it.kind == "move" else it.lasts(self.now)
            if on != self.on[number]:
                getattr(self.hosts, it.kind)(it.nodes, on=on)
                self.on[number] = on

    def until(self, seconds):
        while self.now < seconds:
            self.happen()
            time.sleep(POLL_S)

    def speeds(self, until_s):
        """Measure until then, per second: exchanges among unaffected nodes, and rounds of the slowest."""
        began, met, rounds = self.now, self._met(), self._rounds()
        self.until(until_s)
        took_s = self.now - began
        slowest = min(after - before for before, after in zip(rounds, self._rounds(), strict=True))
        return (self._met() - met) / took_s, slowest / took_s

    def whole(self):
        """Return whether every node lists all others."""
        return all(it.members == self.story.nodes for it in self._statuses(self.folders))

    def _statuses(self, folders):
        """Return the statuses; those of sleeping nodes when they wake."""
        return [until("it does not answer", lambda folder=folder: status_of(folder), AFTER_S) for folder in folders]

    def _rounds(self):
        return [it.round for it in self._statuses(self.folders)]

    def _met(self):
        spared = {self.peers[node] for node in self.story.spared}
        statuses = self._statuses([self.folders[node] for node in self.story.spared])
        return sum(it.committed for now in statuses for it in now.peers if it.peer in spared - {now.peer})


@contextmanager
def on_hosts(count, _folder):
    """Make namespaces; return each one's command line to run `starling`, and a function that names them once all run."""
    with lan(count) as hosts:
        yield lambda number, words: f"ip netns exec {hosts[number]} starling {words}", lambda: hosts


@contextmanager
def in_containers(count, folder):
    """Do the same in containers."""
    with containers(count, folder, NETWORK) as made:
        yield made.line, made.hosts


@contextmanager
def training(story, places, tmp_path):
    """Start nodes on a host each, and wait for their first rounds."""
    slow_steps.write(tmp_path, width=8, layers=1, seconds=STEP_S)
    folders = [tmp_path / str(number) for number in range(story.nodes)]
    what = f"create {AGREED} --set pace.quorum={story.nodes}"
    with places(story.nodes, tmp_path) as (line, hosts), terminals() as terminal:
        for number in range(story.nodes):
            words = f"{what} --no-lan --set trust=true --set threads=1 --dir {number}"
            node = terminal(line(number, words), tmp_path, str(number))
            if not number:
                what = f"join {node.until(node.first_line)}"
        until("they do not begin", lambda: all((it := status_of(each)) and it.round > 5 for each in folders), BEGIN_S)
        yield Play(story, Hosts(hosts()), folders)


@pytest.mark.parametrize("places", [on_hosts, in_containers])
@pytest.mark.parametrize("name", PLAYED)
def test_effects_of_host_faults_end_soon_after_them(name, places, tmp_path: Path):
    story = read(name)
    with training(story, places, tmp_path) as play:
        usual = play.speeds(story.begins)
        meanwhile = play.speeds(max(story.ends, story.begins + 1.0) + 2 * POLL_S)
        ended = play.now
        until("they do not find together again", play.whole, AFTER_S)
        whole_s = play.now - ended
        play.until(ended + AFTER_S)
        after = play.speeds(play.now + MEASURED_S)
    outcome = Outcome(whole_s, meanwhile[0] / usual[0] if usual[0] else 1.0, after[1] / usual[1])
    print(  # noqa: T201
        f"{story.name}, {places.__name__}: whole {outcome.whole_s:.1f} s after it, meanwhile {outcome.others:.0%} of the others' "
        f"exchanges, then {outcome.rounds:.0%} of the rounds; {usual[1]:.2f} a second before; load {os.getloadavg()}"
    )
    assert not outcome.misses(story.bars)
