"""The initial model's file of a swarm of scripts: bytes on disk are verified, and none is in memory twice."""

import os

import pytest

from starling.gossip.chunks import Download, digests, root
from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import MAX_CHUNK_BYTES
from starling.node.config.initial_model import Chunked
from starling.node.storage import start_file
from starling.node.storage.start_file import Received

DATA = b"s" + os.urandom(2 * MAX_CHUNK_BYTES + 4)  # not "x", which a test writes over the first byte
WANTED = Chunked(root(digests(DATA)), len(DATA))


@pytest.fixture
def place(tmp_path):
    return tmp_path / "start.safetensors"


def test_an_initial_file_is_complete_and_right_or_rejected(place):
    assert start_file.listed(place, WANTED) is None
    place.write_bytes(DATA)
    assert start_file.listed(place, WANTED) == digests(DATA)
    for other in (DATA[:-1], DATA + b"x", b"x" + DATA[1:], b""):
        place.write_bytes(other)
        assert start_file.listed(place, WANTED) is None
    place.unlink()
    place.mkdir()
    assert start_file.listed(place, WANTED) is None


def test_a_copied_initial_file_is_private_and_a_wrong_one_is_not_copied(tmp_path, place):
    source = tmp_path / "mine.safetensors"
    source.write_bytes(DATA)
    assert start_file.keep(source, place, WANTED) == digests(DATA)
    assert place.read_bytes() == DATA
    assert place.stat().st_mode & 0o777 == 0o600
    source.write_bytes(b"x" + DATA[1:])
    assert start_file.keep(source, place, WANTED) == digests(DATA), "what is there is right"
    place.unlink()
    with pytest.raises(ConfigError, match=r"start: .* is chunks:\w+, must be|start: .* must be chunks:"):
        start_file.keep(source, place, WANTED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.safetensors"]


def test_an_initial_file_already_in_place_is_kept(place):
    place.write_bytes(DATA)
    before = place.stat().st_ino
    start_file.keep(place, place, WANTED)
    assert place.stat().st_ino == before


def test_a_full_disk_is_reported_in_one_line(tmp_path):
    (tmp_path / "mine").write_bytes(DATA)
    with pytest.raises(ConfigError, match=r"cannot be copied to .*: No such file or directory") as raised:
        start_file.keep(tmp_path / "mine", tmp_path / "none" / "start.safetensors", WANTED)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, MAX_CHUNK_BYTES), (2 * MAX_CHUNK_BYTES, 5), (1, 0), (4 * MAX_CHUNK_BYTES, 0), (2**62, 0)]
)
def test_chunks_are_read_at_their_offsets(place, offset, length):
    place.write_bytes(DATA)
    assert start_file.chunk(place, offset) == (DATA[offset : offset + length] if length else b"")


def test_a_received_file_appears_only_when_complete(place):
    file = Received(place, len(DATA))
    assert not file.begun
    assert not place.exists()
    file.pages[:] = DATA
    file.release()
    file.finish()
    assert start_file.listed(place, WANTED)
    assert place.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in place.parent.iterdir()] == ["start.safetensors"]


def test_valid_chunks_of_damaged_and_interrupted_files_are_reused(place):
    place.write_bytes(b"x" + DATA[1:] + b"longer")
    for _ in range(2):  # damaged, and then partly written by an earlier run
        file = Received(place, len(DATA))
        chunks = Download(len(DATA), WANTED.root, digests(DATA), data=file.pages)
        assert file.begun
        assert chunks.recover(file.chunks()) == 2
        assert not place.exists()


def test_a_link_is_not_followed(tmp_path, place):
    (tmp_path / "start.part").symlink_to(tmp_path / "else")
    with pytest.raises(OSError):
        Received(place, len(DATA))
    assert not (tmp_path / "else").exists()
