"""Sources never block and never raise, whatever happens to their nodes."""

import socket

import pytest

from starling.node.status import control, final
from starling.node.status.snapshot import encode
from starling.tui.source import DemoSource, SocketSource, names_of, open_sources, source_for
from tests.harness.snapshots import snapshot

pytestmark = pytest.mark.real
ATTACHED_S = 5.0  # a source connects before the node accepts; on failure it looks in another directory


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FakeNode:
    def __init__(self, run_dir):
        run_dir.mkdir(exist_ok=True)
        self.path = run_dir / control.SOCKET_NAME
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.listener.settimeout(ATTACHED_S)
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


@pytest.fixture
def node(tmp_path):
    node = FakeNode(tmp_path / "n")
    yield node
    if node.path.exists():
        node.end()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def source(tmp_path, clock):
    source = SocketSource(tmp_path / "n", clock)
    yield source
    source.close()


def test_the_newest_of_several_snapshots_is_shown_and_half_a_line_waits(node, source):
    assert source.poll()[0].snapshot is None
    rest = node.say(snapshot(round=1), snapshot(round=2), snapshot(round=3), cut=10)
    assert source.poll()[0].snapshot.round == 2
    node.streams[0].sendall(rest)
    assert source.poll()[0].snapshot.round == 3


def test_only_the_newest_snapshot_is_decoded(node, source, monkeypatch):
    """A demo's page polls eight nodes a second, and a snapshot of a large swarm is a megabyte."""
    decoded = []
    decode = control.snapshots.decode
    monkeypatch.setattr(control.snapshots, "decode", lambda line: decoded.append(line) or decode(line))
    source.poll()
    node.say(*(snapshot(round=number) for number in range(1, 6)))
    (first,) = source.poll()
    assert (len(decoded), first.snapshot.round) == (1, 5)
    (again,) = source.poll()
    assert len(decoded) == 1
    assert again is first


def test_a_vanished_node_leaves_its_last_snapshot_and_is_attached_again(tmp_path, node, source, clock):
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
    node.end()


@pytest.mark.parametrize(
    ("line", "trouble"), [(b'{"version": 1}\n', "not a status snapshot"), (encode(snapshot(version=2)), "version 2, this program reads 1")]
)
def test_invalid_lines_are_reported_without_an_exception(node, source, line, trouble):
    source.poll()
    node.streams.append(node.listener.accept()[0])
    node.streams[0].sendall(line)
    assert trouble in source.poll()[0].trouble


def test_a_path_without_a_node_is_reported_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file"):
        assert isinstance(source_for(path), SocketSource)
        (reading,) = SocketSource(path).poll()
        assert reading.snapshot is None
        assert reading.trouble == f"no node is running in {path}; start it with `starling run --dir {path}`"


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


def test_a_demo_shows_the_lone_node_s_result_on_each_node(tmp_path):
    """The lone node has no row and no tab, as it is no member; its last figure stays after its end."""
    clock = Clock()
    (tmp_path / "node-0").mkdir()
    source = DemoSource(tmp_path, clock)
    assert [reading.alone for reading in source.poll()] == [None]
    node = FakeNode(tmp_path / "alone")
    clock.now = 2.0
    source.poll()
    node.say(snapshot(value=0.725))
    (seen,) = source.poll()
    assert (seen.name, seen.alone) == ("node-0", 0.725)
    node.end()
    assert [reading.alone for reading in source.poll()] == [0.725]
    source.close()


def test_nodes_in_equally_named_directories_are_named_with_their_parents(tmp_path):
    runs = [tmp_path / name for name in ("one/node-0", "two/node-0", "two/node-1", "two/node-1")]
    assert names_of(runs) == ["one/node-0", "two/node-0", "node-1", "node-1 (2)"]
    assert names_of([tmp_path / "a" / "record.jsonl", tmp_path / "b.jsonl"]) == ["a", "b"]
    for run in runs:
        run.mkdir(parents=True, exist_ok=True)
    sources, _ = open_sources([tmp_path / "one", tmp_path / "two"])
    assert [reading.name for source in sources for reading in source.poll()] == ["one/node-0", "two/node-0", "two/node-1"]


def test_a_node_that_has_ended_is_shown_by_the_status_that_it_left(tmp_path, clock, source):
    directory = tmp_path / "n"
    directory.mkdir()
    left = final.FinalStatus("failed", snapshot(state="failed", round=3), "the disk is full")
    (directory / final.FINAL_NAME).write_text(final.encode(left))
    (ended,) = source.poll()
    assert (ended.snapshot, ended.ended, ended.live) == (left.snapshot, True, False)
    assert ended.result == final.how_ended(left, directory)
    assert "failed after 3 rounds" in ended.result
    again = FakeNode(directory)
    clock.now = 2.0
    source.poll()
    again.say(snapshot(round=4))
    (back,) = source.poll()
    assert (back.snapshot.round, back.live, back.ended) == (4, True, False)
    again.end()
    (directory / final.FINAL_NAME).unlink()  # killed
    source.poll()
    clock.now = 4.0
    (gone,) = source.poll()
    assert (gone.snapshot.round, gone.result) == (4, "")
    assert "no node is running" in gone.trouble


def test_a_record_is_named_and_a_damaged_last_status_is_said(tmp_path):
    (tmp_path / "record.jsonl").write_text("")
    (reading,) = SocketSource(tmp_path).poll()
    replayed = f"its record is replayed by `starling tui {tmp_path}/record.jsonl`"
    assert reading.trouble.endswith(f"`starling run --dir {tmp_path}`; {replayed}")
    (tmp_path / final.FINAL_NAME).write_text("{")
    (reading,) = SocketSource(tmp_path).poll()
    assert f"{tmp_path / final.FINAL_NAME}: " in reading.trouble
    (tmp_path / final.FINAL_NAME).write_text(final.encode(final.FinalStatus("finished", snapshot(state="finished"))))
    (reading,) = SocketSource(tmp_path).poll()
    assert reading.result.endswith(replayed)
