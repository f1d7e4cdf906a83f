"""The control socket answers its owner, and no observer can block the node."""

import json
import os
import socket
import stat
import time
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from starling.gossip.errors import ConfigError, EngineError
from starling.node.daemon.events import Changes
from starling.node.daemon.observe import control_server
from starling.node.daemon.observe.control_server import MAX_CONNECTIONS, ControlServer
from starling.node.status import control
from starling.node.status.snapshot import VERSION, StatusSnapshot

pytestmark = [pytest.mark.real, pytest.mark.trio]


class Node:
    """Has a status to publish: counts rounds, records commands."""

    def __init__(self, padding=0):
        self.snapshot = StatusSnapshot(
            version=VERSION, peer="12D3a", swarm="s", name="n" + "x" * padding, time_s=1.0, uptime_s=1.0, state="training"
        )
        self.commands = []
        self.ended = trio.Event()

    def status(self):
        return self.snapshot

    def advance(self):
        self.snapshot = msgspec.structs.replace(self.snapshot, round=self.snapshot.round + 1)

    async def command(self, op, fields):
        self.commands.append((op, dict(fields)))
        if op == "evaluate":
            raise EngineError("the engine is busy")
        if op == "ban":
            raise ConfigError("peer: no known peer is 'x'")
        if op == "stop":
            self.ended.set()
        return {"path": fields.get("path")}


@asynccontextmanager
async def published(run_dir, node):
    changes = Changes()
    server = ControlServer(run_dir, node.status, node.command, changes)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield changes
        nursery.cancel_scope.cancel()


def ask(function, *args, **kwargs):
    """Send a blocking request in a thread, beside the event loop that answers it."""
    return trio.to_thread.run_sync(lambda: function(*args, **kwargs))


def raw(run_dir, data, *, timeout_s=3.0):
    """Send these bytes; return what the node answers until it closes or is silent."""
    connection = control.connect(run_dir)
    connection.settimeout(timeout_s)
    with connection:
        connection.sendall(data)
        answer = b""
        while not answer.endswith(b"\n"):
            chunk = connection.recv(1 << 16)
            if not chunk:
                break
            answer += chunk
    return json.loads(answer)


async def test_status_is_the_snapshot_of_this_moment(tmp_path):
    node = Node()
    async with published(tmp_path, node):
        assert await ask(control.status, tmp_path) == node.snapshot
        node.advance()
        assert (await ask(control.status, tmp_path)).round == 1


async def test_the_socket_is_for_its_owner_alone_and_is_gone_afterwards(tmp_path):
    path = tmp_path / control.SOCKET_NAME
    async with published(tmp_path, Node()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [file.name for file in tmp_path.iterdir()] == [control.SOCKET_NAME]
    assert list(tmp_path.iterdir()) == []


async def test_a_socket_left_by_a_killed_node_is_replaced(tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / control.SOCKET_NAME))
    with pytest.raises(control.NotRunning, match="starling run --dir"):
        control.status(tmp_path)
    async with published(tmp_path, Node()):
        assert (await ask(control.status, tmp_path)).peer == "12D3a"


async def test_a_second_node_in_the_same_directory_is_refused_and_the_first_goes_on(tmp_path):
    async with published(tmp_path, Node()):
        with pytest.raises(ConfigError, match="already running"):
            await ControlServer(tmp_path, Node().status, Node().command, Changes()).run()
        assert (await ask(control.status, tmp_path)).peer == "12D3a"


async def test_a_run_directory_deeper_than_a_socket_address_works(tmp_path):
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 8)
    deep.mkdir(parents=True)
    assert len(os.fsencode(deep)) > 200
    async with published(deep, Node()):
        assert (await ask(control.status, deep)).peer == "12D3a"
    with pytest.raises(control.NotRunning):
        control.status(deep)


@pytest.mark.slow
async def test_a_watcher_gets_a_change_soon_and_otherwise_one_snapshot_a_second(tmp_path):
    node = Node()
    async with published(tmp_path, node) as changes:
        watch = await ask(control.Watch, tmp_path)
        with watch:
            assert (await ask(watch.poll, 2.0)).round == 0
            began = time.monotonic()
            for _ in range(50):  # a burst of changes gives one line
                node.advance()
                changes.notify()
            assert (await ask(watch.poll, 2.0)).round == 50
            assert 0.1 < time.monotonic() - began < 0.9
            began = time.monotonic()
            assert (await ask(watch.poll, 2.0)).round == 50
            assert 0.7 < time.monotonic() - began < 1.6
            assert watch.poll() is None


async def test_commands_reach_the_node_with_their_fields(tmp_path):
    node = Node()
    async with published(tmp_path, node):
        assert await ask(control.request, tmp_path, "export", path="/x.safetensors") == {"path": "/x.safetensors"}
        assert await ask(control.request, tmp_path, "leave") == {"path": None}
    assert node.commands == [("export", {"path": "/x.safetensors"}), ("leave", {})]


async def test_the_answer_to_stop_goes_out_although_the_node_is_ending(tmp_path):
    node = Node()

    async def stop(op, fields):
        nursery.cancel_scope.cancel()
        return {"saved": True}

    answers = []

    async def person():
        answers.append(await ask(control.request, tmp_path, "stop"))

    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        await nursery.start(ControlServer(tmp_path, node.status, stop, Changes()).run)
        outer.start_soon(person)
    assert answers == [{"saved": True}]


async def test_a_failed_command_is_an_answer_and_not_the_end_of_the_node(tmp_path):
    async with published(tmp_path, Node()):
        with pytest.raises(control.ControlError, match="the engine is busy"):
            await ask(control.request, tmp_path, "evaluate")
        assert (await ask(control.status, tmp_path)).state == "training"


async def test_an_answer_tells_wrong_input_from_a_failure(tmp_path):
    """The command line's exit code is 2 for the one and 1 for the other."""
    async with published(tmp_path, Node()):
        with pytest.raises(control.ControlError) as failed:
            await ask(control.request, tmp_path, "evaluate")
        with pytest.raises(control.WrongInput, match="no known peer is 'x'"):
            await ask(control.request, tmp_path, "ban", peer="x")
    assert failed.type is control.ControlError


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"\n", "one JSON object"),
        (b"[1]\n", "one JSON object"),
        (b'{"op": "\xff"}\n', "one JSON object"),
        (b'{"a":' + b"[" * 60_000 + b"\n", "one JSON object"),
        (b'{"op": 7}\n', "must be one of status, watch, leave"),
        (b'{"op": "restart"}\n', "must be one of status, watch, leave"),
        (b'{"op": "export", "path": 3}\n', "needs path"),
        (b"x" * (control.MAX_REQUEST_BYTES + 10), "at most"),
    ],
)
async def test_invalid_commands_are_answered_in_one_line_and_have_no_effect(tmp_path, line, error):
    node = Node()
    async with published(tmp_path, node):
        answer = await ask(raw, tmp_path, line)
        assert answer["ok"] is False
        assert error in answer["error"]
        assert (await ask(control.status, tmp_path)).peer == "12D3a"
    assert node.commands == []


@pytest.mark.slow
async def test_one_observer_too_many_is_refused_and_the_others_continue(tmp_path):
    async with published(tmp_path, Node()):
        watches = [await ask(control.Watch, tmp_path) for _ in range(MAX_CONNECTIONS)]
        for watch in watches:
            assert (await ask(watch.poll, 2.0)) is not None
        with pytest.raises(control.ControlError, match="close one"):
            await ask(control.status, tmp_path)
        watches.pop().close()
        with trio.fail_after(3):
            while True:  # its place is free once the node has tried to write to it
                try:
                    await ask(control.status, tmp_path)
                    break
                except control.ControlError:
                    await trio.sleep(0.05)
        for watch in watches:
            watch.close()


@pytest.mark.slow
async def test_a_watcher_that_does_not_read_is_dropped_and_does_not_slow_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(control_server, "SLOW_S", 1.0)
    node = Node(padding=1 << 20)
    async with published(tmp_path, node):
        asleep = await ask(control.Watch, tmp_path)
        awake = await ask(control.Watch, tmp_path)
        with asleep, awake, trio.fail_after(5):
            assert await ask(awake.poll, 2.0) is not None
            began = time.monotonic()
            await ask(control.status, tmp_path)
            assert time.monotonic() - began < 0.8
            await trio.sleep(1.2)
            with pytest.raises(control.ControlError, match="went away"):
                list(iter(lambda: asleep.poll(0.5), "for ever"))
