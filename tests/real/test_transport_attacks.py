"""Every known attack on a libp2p host, from another process, against a normal node: it survives, and honest peers are served.

The letters are those of the threat model, for attacks under which a stock py-libp2p host dies, becomes unreachable, or slows down. During
an attack an honest newcomer connects every half second and requests the manifest, as does an already connected one; the control socket is
queried from outside, and the node's loop is timed (`tests/harness/victim.py`).
"""

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import trio

from starling.gossip.wire import frames
from starling.gossip.wire.schema import ManifestQuery, ManifestReply
from starling.node.net.libp2p.addresses import parse
from starling.node.status import control
from tests.harness.attackers import MORE, TIMES
from tests.harness.libp2p_nodes import node
from tests.harness.processes import ENVIRONMENT, ROOT, status_of, until
from tests.harness.victim import SECONDS

pytestmark = [pytest.mark.real, pytest.mark.slow]

SERVED_S = 2.0
MOST_GROWTH_BYTES = 64 << 20
LATE_S = 0.1
PROBE_S = 0.5
MOST_SLOW = 4.0
CREATE = "create --set task.kind=digits --set pace.quorum=2 --set pace.rounds=0 --set optimizer.schedule=constant"


@dataclass
class Victim:
    """A node that waits for members, and its attacker."""

    directory: Path
    process: psutil.Process
    worst: Path
    address: str
    swarm: str
    attackers: subprocess.Popen

    def reset(self):
        with self.worst.open("r+b") as file:  # modified in place: the node has a memory map of it
            file.write(bytes(SECONDS.size))

    @property
    def late_s(self):
        """Return the longest stretch of its loop's own work since the reset."""
        return SECONDS.unpack(self.worst.read_bytes())[0]


@contextmanager
def running(arguments, **more):
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **more.pop("env", {})}
    with subprocess.Popen([sys.executable, "-m", *arguments], env=environment, **more) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                    each.kill()


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    place = tmp_path_factory.mktemp("victim")
    worst, run_dir = place / "worst", place / "node"
    words = ["tests.harness.victim", *CREATE.split(), "--listen", "/ip4/127.0.0.1/tcp/0", "--dir", str(run_dir)]
    with (
        (place / "out").open("wb") as out,
        running(words, env={"VICTIM_WORST": str(worst)}, cwd=place, stdout=out, stderr=out, stdin=subprocess.DEVNULL) as process,
    ):
        until("it does not start", lambda: (now := status_of(run_dir)) and now.state == "waiting")
        snapshot = status_of(run_dir)
        endpoint = parse(snapshot.addresses[0])
        with running(
            ["tests.harness.attackers", endpoint.host, str(endpoint.port), snapshot.peer],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as attackers:
            assert attackers.stdout.readline() == "ready\n"
            yield Victim(run_dir, psutil.Process(process.pid), worst, snapshot.addresses[0], snapshot.swarm, attackers)


@dataclass
class Seen:
    """Measurements during an attack."""

    newcomers: list[float] = field(default_factory=list)
    present: list[float] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)
    grown: int = 0
    slow: float = 1.0
    """How many times longer things took because others use this machine: of all processor time, over what was ours or idle."""


async def asked(network, victim, peer):
    """Return the seconds until the manifest has arrived."""
    began = trio.current_time()
    with trio.fail_after(10 * SERVED_S):
        await network.send(peer, "state", frames.encode(ManifestQuery(victim.swarm)))
        inbound = await network.inbound("state").receive()
    reply = frames.decode("state", inbound.peer, inbound.frame)
    assert isinstance(reply, ManifestReply)
    assert len(reply.manifest) > 100
    return trio.current_time() - began


async def newcomer(victim, name, seen):
    began = trio.current_time()
    async with node(name, listen=None) as network:
        peer = await network.dial(victim.address)
        await asked(network, victim, peer)
        seen.newcomers.append(trio.current_time() - began)


async def probe(victim, present, peer, seen):
    """Request every half second, whether or not the last requests were served."""
    async with trio.open_nursery() as nursery:
        for number in range(10_000):
            nursery.start_soon(newcomer, victim, f"honest {os.getpid()} {number}", seen)
            seen.present.append(await asked(present, victim, peer))
            await trio.sleep(PROBE_S)


async def watch(victim, seen):
    before = victim.process.memory_info().rss
    while True:
        began = time.monotonic()
        await trio.to_thread.run_sync(control.status, victim.directory)
        seen.pings.append(time.monotonic() - began)
        seen.grown = max(seen.grown, victim.process.memory_info().rss - before)
        await trio.sleep(0.1)


@contextmanager
def beside_others(seen, processes):
    def spent():
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    began, ours = psutil.cpu_times(), spent()
    yield
    passed = [after - before for after, before in zip(psutil.cpu_times(), began, strict=True)]
    idle = passed[began._fields.index("idle")]
    seen.slow = min(MOST_SLOW, max(1.0, sum(passed) / max(idle + spent() - ours, 1e-3)))


async def attacked(victim, name, seconds, times):
    seen, attackers = Seen(), victim.attackers
    with beside_others(seen, [victim.process, psutil.Process(attackers.pid), psutil.Process()]):
        return await watched(victim, name, seconds, times, seen)


async def watched(victim, name, seconds, times, seen):
    attackers = victim.attackers
    async with node("honest and here", listen=None) as present:
        peer = await present.dial(victim.address)
        await asked(present, victim, peer)
        victim.reset()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, victim, seen)
            nursery.start_soon(probe, victim, present, peer, seen)
            attackers.stdin.write(f"{name} {seconds} {times}\n")
            attackers.stdin.flush()
            outcome = json.loads(await trio.to_thread.run_sync(attackers.stdout.readline))
            with trio.fail_after(10 * SERVED_S):
                await newcomer(victim, "honest and late", seen)
            nursery.cancel_scope.cancel()
    return outcome, seen


def check(victim, name, seconds, times):
    outcome, seen = trio.run(attacked, victim, name, seconds, times)
    assert outcome["done"] >= times, "the attack was what it says"
    figures = (
        f"{name}: {outcome['done']} ({outcome['refused']} refused), newcomers {max(seen.newcomers):.2f} s, present "
        f"{max(seen.present):.2f} s, memory {seen.grown / 2**20:+.1f} MiB, loop {1e3 * victim.late_s:.0f} ms, "
        f"control {1e3 * statistics.median(seen.pings):.0f} ms; machine {seen.slow:.1f} times slower than alone"
    )
    print(figures)  # noqa: T201  seen with -s
    assert victim.process.is_running(), figures
    assert victim.process.status() != psutil.STATUS_ZOMBIE, figures
    assert max(seen.newcomers) <= SERVED_S * seen.slow, figures
    assert max(seen.present) <= SERVED_S * seen.slow, figures
    assert seen.grown <= MOST_GROWTH_BYTES, figures
    assert victim.late_s < LATE_S, figures
    assert statistics.median(seen.pings) < LATE_S * seen.slow, figures


@pytest.mark.parametrize("name", sorted(TIMES))
def test_a_node_under_attack_serves_honest_peers_within_bounded_memory_and_time(victim, name):
    """Honest peers within two seconds throughout, memory no more than 64 MiB higher, the loop never busy for a tenth of a second."""
    check(victim, name, 1.0, TIMES[name])


@pytest.mark.acceptance
@pytest.mark.parametrize("name", sorted(MORE))
def test_a_node_withstands_every_attack_for_long(victim, name):
    """The same for at least ten seconds."""
    check(victim, name, 10.0, MORE[name])
