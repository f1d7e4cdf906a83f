"""Processes forked for a local swarm end as others do, and leave nothing."""

import subprocess
import sys

import psutil
import pytest

from starling.node import forks
from tests.harness.processes import lives, status_of, terminals, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.skipif(not forks.available(), reason="forks need Linux and its pidfds")]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forks")
    with forks.Servers(folder) as servers:
        family = psutil.Process(servers.pid).children()  # the other server
        yield servers
    until("a server is still there", lambda: not any(map(lives, family)), 5.0)


def test_servers_that_are_importing_end_with_their_parent(tmp_path):
    """Importing torch takes seconds in which a server notices nothing; Ctrl-C during a demo's start must work within three."""
    with forks.Servers(tmp_path) as starting:
        ours = psutil.Process(starting.pid)
        family = [ours, *until("only one server", ours.children)]
    until("a server is still there", lambda: not any(map(lives, family)), 0.5)


@pytest.fixture
def forked(servers, tmp_path):
    """Fork a command of starling; return what it prints."""
    output = tmp_path / "output"

    def fork(*arguments):
        with output.open("wb") as file:
            processes.append(servers.node(arguments, file.fileno()))
        return processes[-1], output

    processes = []
    yield fork
    for process in processes:
        process.kill()
        process.stdin.close()


def test_output_and_exit_status_of_forked_processes_are_passed_on(forked):
    process, output = forked("--version")
    assert process.wait(60.0) == 0
    assert output.read_text().startswith("starling")
    process, output = forked("run", "--dir", "nowhere")
    assert process.wait(60.0) == 2
    assert "nowhere" in output.read_text()
    assert process.poll() == 2


def test_a_killed_process_is_reported_and_an_ended_one_is_not_killed(forked, tmp_path):
    process, _output = forked("create", "--dir", str(tmp_path / "n"), "--listen", "/ip4/127.0.0.1/tcp/0")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    process.kill()
    assert process.wait(5.0) == -9
    process.kill()


def test_the_servers_folder_is_deleted_when_their_parent_is_killed(tmp_path):
    """After SIGKILL the servers delete their folder themselves."""
    folder = tmp_path / "forks"
    folder.mkdir()
    words = "import pathlib, sys, time; from starling.node import forks\nwith forks.Servers(pathlib.Path(sys.argv[1])): time.sleep(600)"
    starter = subprocess.Popen([sys.executable, "-c", words, str(folder)])
    until("no sockets", lambda: len([*folder.glob("*")]) == 2)
    starter.kill()
    starter.wait()
    until("the folder is still there", lambda: not folder.exists())


def test_nothing_outlives_a_demo_that_is_killed(tmp_path):
    """Standard input ends for both servers and the nodes; an engine ends with its node."""
    with terminals() as terminal:
        running = terminal("starling demo --nodes 2 --rounds 100000 --no-tui --dir kept", tmp_path, "demo")
        running.until(lambda: (now := status_of(tmp_path / "kept" / "node-1")) and now.round > 2)
        family = running.kill()
        assert len(family) == 8  # two servers, two nodes and the lone node, with an engine each
        until(f"still there: {family}", lambda: not any(map(lives, family)), 20.0)


def test_a_missing_fork_server_has_a_reason(tmp_path):
    with pytest.raises(OSError, match=r"No such file|not found"):
        forks.Servers(tmp_path).node(["--version"], 2)
