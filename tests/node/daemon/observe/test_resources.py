"""The node's own use of the machine: two processes and a folder, sampled rarely, whatever happens to them."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest

from starling.node.daemon.observe import resources
from starling.node.daemon.observe.resources import SAMPLE_S, WALK_S, ResourceMonitor
from starling.node.status.snapshot import Resources

ENGINE = 4_000_000


class Machine:
    """Two processes: seconds and bytes by process id; a process without an entry has ended."""

    def __init__(self):
        self.now = 100.0
        self.seconds = {os.getpid(): 5.0}
        self.bytes = {os.getpid(): 1000, ENGINE: 4000}
        self.looks = 0

    def process(self, pid):
        def times():
            self.looks += 1
            if pid not in self.seconds:
                raise psutil.NoSuchProcess(pid)
            return SimpleNamespace(user=self.seconds[pid] - 1.0, system=1.0)

        memory = lambda: SimpleNamespace(rss=self.bytes[pid])  # noqa: E731
        return SimpleNamespace(oneshot=nullcontext, cpu_times=times, memory_info=memory)


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(resources.psutil, "Process", machine.process)
    return machine


def test_cores_are_processor_seconds_of_both_processes_per_elapsed_second(machine, tmp_path):
    usage = ResourceMonitor(tmp_path, lambda: machine.now)
    machine.now, machine.seconds = 104.0, {os.getpid(): 6.0, ENGINE: 3.0}
    first = usage.sample(ENGINE)
    assert (first.cpu, first.memory_bytes) == (1.0, 5000), "an engine that began meanwhile counts from its beginning"
    machine.now, machine.seconds = 106.0, {os.getpid(): 6.5, ENGINE: 4.5}
    assert usage.sample(ENGINE).cpu == 1.0


def test_resources_are_sampled_at_most_once_per_interval(machine, tmp_path):
    usage = ResourceMonitor(tmp_path, lambda: machine.now)
    machine.now += 0.9 * SAMPLE_S
    looks = machine.looks
    assert all(usage.sample(None) == Resources(memory_bytes=1000, disk_bytes=0) for _ in range(100))
    assert machine.looks == looks


def test_a_restarted_engine_causes_no_error(machine, tmp_path):
    usage = ResourceMonitor(tmp_path, lambda: machine.now)
    machine.now, machine.seconds[ENGINE] = machine.now + 2.0, 2.0
    usage.sample(ENGINE)
    del machine.seconds[ENGINE]
    machine.now += 2.0
    dead = usage.sample(ENGINE)
    assert (dead.cpu, dead.memory_bytes) == (0.0, 1000)
    machine.now, machine.seconds[ENGINE] = machine.now + 2.0, 1.0
    assert usage.sample(ENGINE).cpu == 0.5


def test_the_folder_s_size_includes_subfolders_and_excludes_link_targets(machine, tmp_path):
    inside = tmp_path / "run"
    (inside / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere").write_bytes(b"x" * 10_000)
    (inside / "log").write_bytes(b"x" * 100)
    (inside / "deep" / "model").write_bytes(b"x" * 20)
    usage = ResourceMonitor(inside, lambda: machine.now)
    (inside / "link").symlink_to(tmp_path / "elsewhere")
    link = (inside / "link").lstat().st_size
    machine.now += 0.9 * WALK_S
    assert usage.sample(None).disk_bytes == 120
    machine.now += 0.2 * WALK_S
    assert usage.sample(None).disk_bytes == 120 + link


def test_a_missing_folder_or_one_with_too_many_files_has_no_size(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "MAX_FILES", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()
    assert ResourceMonitor(tmp_path, lambda: machine.now).sample(None).disk_bytes is None
    assert ResourceMonitor(tmp_path / "none", lambda: machine.now).sample(None).disk_bytes is None


def test_the_current_process_is_measured(tmp_path):
    now = SimpleNamespace(s=0.0)
    usage = ResourceMonitor(tmp_path, lambda: now.s)
    before = os.times()
    while os.times().user - before.user < 0.02:
        sum(range(1000))
    now.s = 10.0
    seen = usage.sample(os.getpid() + (1 << 22))
    assert 0.0005 < seen.cpu < 10.0
    assert seen.memory_bytes > 10 << 20
