"""Sources never block and never raise, whatever happens to the nodes they look at."""

from __future__ import annotations

import socket

import pytest

from starling.node.status import control
from starling.node.status.snapshot import encode
from starling.tui.open_sources import names_of, open_sources, source_for
from starling.tui.source import DemoSource, SocketSource
from tests.harness.snapshots import snapshot

pytestmark = pytest.mark.real


class Clock:
    """A clock that is set."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FakeNode:
    """The other end of a control socket, without a loop."""

    def __init__(self, run_dir):
        run_dir.mkdir(exist_ok=True)
        self.path = run_dir / control.SOCKET_NAME
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.streams = []

    def say(self, *snapshots, cut=0):
        if not self.streams:
            self.streams.append(self.listener.accept()[0])
        data = b"".join(map(encode, snapshots))
        self.streams[-1].sendall(data[: len(data) - cut])
        return data[len(data) - cut :]

    def end(self):
        for each in (*self.streams, self.listener):
            each.close()
        self.path.unlink()


def test_without_a_node_the_reading_says_what_to_do(tmp_path):
    (reading,) = SocketSource(tmp_path).poll()
    assert reading.snapshot is None
    assert reading.trouble == f"no node is running in {tmp_path}; start it with `starling run --dir {tmp_path}`"


def test_the_newest_of_several_snapshots_is_shown_and_half_a_line_waits(tmp_path):
    node = FakeNode(tmp_path / "n")
    source = SocketSource(tmp_path / "n")
    assert source.poll()[0].snapshot is None
    rest = node.say(snapshot(round=1), snapshot(round=2), snapshot(round=3), cut=10)
    assert source.poll()[0].snapshot.round == 2
    node.streams[0].sendall(rest)
    assert source.poll()[0].snapshot.round == 3
    source.close()
    node.end()


def test_a_vanished_node_leaves_its_last_snapshot_and_is_attached_again(tmp_path):
    clock = Clock()
    node = FakeNode(tmp_path / "n")
    source = SocketSource(tmp_path / "n", clock)
    source.poll()
    node.say(snapshot(round=5))
    assert source.poll()[0].trouble is None
    node.end()
    (gone,) = source.poll()
    assert gone.snapshot.round == 5
    assert "went away" in gone.trouble
    clock.now = 2.0
    assert "no node is running" in source.poll()[0].trouble
    node = FakeNode(tmp_path / "n")
    clock.now = 4.0
    source.poll()
    node.say(snapshot(round=6))
    (back,) = source.poll()
    assert (back.snapshot.round, back.trouble) == (6, None)
    source.close()
    node.end()


def test_nonsense_on_the_socket_is_trouble_and_not_an_exception(tmp_path):
    clock = Clock()
    node = FakeNode(tmp_path / "n")
    source = SocketSource(tmp_path / "n", clock)
    source.poll()
    node.streams.append(node.listener.accept()[0])
    node.streams[0].sendall(b'{"version": 1}\n')
    assert "not a status snapshot" in source.poll()[0].trouble
    node.end()


def test_a_node_of_another_version_is_named_as_such(tmp_path):
    node = FakeNode(tmp_path / "n")
    source = SocketSource(tmp_path / "n")
    source.poll()
    node.say(snapshot(version=2))
    assert "version 2, this program reads 1" in source.poll()[0].trouble
    node.end()


def test_a_demo_folder_gives_its_nodes_by_number_also_those_that_come_later(tmp_path):
    clock = Clock()
    for number in (10, 2):
        (tmp_path / f"node-{number}").mkdir()
    (tmp_path / "node-x").mkdir()
    (tmp_path / "node-3").write_text("a file")
    source = source_for(tmp_path)
    assert isinstance(source, DemoSource)
    source = DemoSource(tmp_path, clock)
    assert [reading.name for reading in source.poll()] == ["node-2", "node-10"]
    (tmp_path / "node-0").mkdir()
    clock.now = 2.0
    assert [reading.name for reading in source.poll()] == ["node-0", "node-2", "node-10"]
    source.close()


def test_a_run_directory_is_a_node(tmp_path):
    assert isinstance(source_for(tmp_path), SocketSource)


def test_a_file_where_the_directory_should_be_is_trouble(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    assert "no node is running" in SocketSource(path).poll()[0].trouble


def test_nodes_whose_directories_have_one_name_are_told_apart_by_those_above(tmp_path):
    """Two demos beside each other both have a node-0."""
    runs = [tmp_path / name for name in ("one/node-0", "two/node-0", "two/node-1", "two/node-1")]
    assert names_of(runs) == ["one/node-0", "two/node-0", "node-1", "node-1 (2)"]
    assert names_of([tmp_path / "a" / "record.jsonl", tmp_path / "b.jsonl"]) == ["a", "b"]
    for run in runs:
        run.mkdir(parents=True, exist_ok=True)
    sources, _ = open_sources([tmp_path / "one", tmp_path / "two"])
    assert [reading.name for source in sources for reading in source.poll()] == [
        "one/node-0",
        "two/node-0",
        "two/node-1",
    ]
