"""One module knows the operating system. Alternatives for other systems that work here too are tested as well."""

import errno
import mmap
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from starling.gossip.errors import ConfigError
from starling.node import platform
from starling.node.daemon.observe.control_server import ControlServer
from starling.node.status import control

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"node/platform.py", "gossip/vector.py", "tui/__main__.py"}
"""The module itself, and one line each of two parts that may not import it or have no other way."""


@pytest.fixture(params=["linux", "darwin", "win32"])
def system(request, monkeypatch):
    """Run with each system's implementation that works on Linux."""
    monkeypatch.setattr(sys, "platform", request.param)
    return request.param


def test_only_the_platform_module_asks_for_the_operating_system():
    asking = {
        str(path.relative_to(ROOT))
        for folder in ("node", "gossip", "robust", "tui", "src/starling/integrations")
        for path in (ROOT / folder).rglob("*.py")
        if "sys.platform" in path.read_text()
    }
    assert asking == ELSEWHERE


def test_a_socket_is_readable_when_bytes_came_or_the_other_end_closed(system):
    ours, theirs = socket.socketpair()
    with ours:
        assert not platform.readable(ours, ours.fileno())
        began = time.monotonic()
        assert not platform.readable(ours, timeout_s=0.05)
        assert time.monotonic() - began >= 0.05
        theirs.send(b"x")
        assert platform.readable(ours, timeout_s=None)
        ours.recv(1)
        assert not platform.readable(ours)
        theirs.close()
        assert platform.readable(ours)


def test_a_reader_that_closed_a_pipe_is_noticed_while_waiting():
    read, write = os.pipe()
    assert not platform.closes(write, 0.0)
    os.close(read)
    assert platform.closes(write, 60.0)
    os.close(write)


def test_a_file_is_written_and_read_at_any_offset(system, tmp_path):
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    platform.write_at(file, b"later", 5)
    platform.write_at(file, b"first", 0)
    assert platform.read_at(file, 5, 5) == b"later"
    assert platform.read_at(file, 99, 0) == b"firstlater"
    os.close(file)


@pytest.mark.parametrize("before", [b"", b"x" * 1000])
def test_disk_space_is_really_allocated(system, tmp_path, before):
    size = (2 << 20) + 12345
    path = tmp_path / "file"
    path.write_bytes(before)
    file = os.open(path, os.O_RDWR)
    platform.allocate(file, size)
    os.close(file)
    found = path.stat()
    assert found.st_size == size
    assert found.st_blocks * 512 >= size
    assert path.read_bytes()[: len(before)] == before


def test_pages_of_a_file_that_are_dropped_are_read_again(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        pages[:3] = b"new"
        platform.drop_pages(pages)
        assert pages[:3] == b"new"


@pytest.mark.parametrize("here", ["linux", "darwin"])
def test_a_file_without_a_name_leaves_none(monkeypatch, tmp_path, here):
    monkeypatch.setattr(sys, "platform", here)
    file = platform.nameless_file(tmp_path)
    platform.write_at(file, b"shared", 0)
    assert platform.read_at(file, 6, 0) == b"shared"
    assert list(tmp_path.iterdir()) == []
    assert not os.get_inheritable(file)
    os.close(file)


def test_files_travel_over_a_socket(tmp_path):
    ours, theirs = socket.socketpair()
    (tmp_path / "file").write_text("content")
    with ours, theirs, (tmp_path / "file").open() as file:
        platform.send_files(ours, b"here", [file.fileno()])
        data, files = platform.receive_files(theirs, 100, 4)
        assert data == b"here"
        assert os.read(files[0], 100) == b"content"
        os.close(files[0])


def test_a_session_is_killed_with_all_its_processes():
    script = "import subprocess, sys; subprocess.Popen(['sleep', '60']); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        platform.kill_session(process.pid)
        assert process.stdout.read() == b"", "the grandchild had it open, too"
        assert platform.out_of_memory(process.wait())


def test_termination_signals_are_those_of_the_system(system):
    assert (platform.hangup() is None) == (system == "win32")


def test_an_unlimited_address_space_gives_no_figure(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY,) * 2)
    assert platform.address_space() is None
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1 << 30, -1))
    assert platform.address_space() == 1 << 30
    monkeypatch.setattr(sys, "platform", "win32")
    assert platform.address_space() is None


def test_a_deep_folder_has_a_short_path_or_the_owner_is_told_to_choose_another(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with platform.short_path(deep, "node.sock") as short:
        Path(short).write_text("x")
    assert (deep / "node.sock").read_text() == "x"
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match="choose a shorter --dir") as raised, platform.short_path(deep, "node.sock"):
        pass
    assert raised.value.errno == errno.ENAMETOOLONG


@pytest.mark.parametrize(
    "lacks",
    [
        platform.unix_socket,
        lambda: platform.send_files(None, b"", []),
        lambda: platform.receive_files(None, 1, 1),
        lambda: platform.inheriting(0),
        platform.fork,
        lambda: platform.process_descriptor(0),
        lambda: platform.kill(0),
        platform.begin_session,
    ],
)
def test_features_missing_on_windows_give_one_line(monkeypatch, lacks):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(OSError, match=r"this system has no .*; on Windows run Starling in WSL"):
        lacks()


@pytest.mark.trio
async def test_on_windows_a_node_refuses_before_doing_anything(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match=r"--dir: .*no Unix sockets; on Windows run Starling in WSL"):
        await ControlServer(tmp_path, None, None, None).run()
    with pytest.raises(control.ControlError, match="no Unix sockets; on Windows run Starling in WSL"):
        control.connect(tmp_path)
