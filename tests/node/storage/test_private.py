"""Files of a run directory are readable by their owner only, and never written through a link."""

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.admission.credential import Ticket
from starling.node.config.schema import NodeConfig
from starling.node.engine import tensor_file
from starling.node.engine.checkpoint import Checkpoint, Checkpoints
from starling.node.identity import Identity
from starling.node.storage import private
from starling.node.storage.log import open_log
from starling.node.storage.run_dir import RunDir


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def write_log(place):
    with open_log(place.path, peer_id="p", run_id="r") as log:
        log.write("info", "begun")


def save_checkpoint(place):
    Checkpoints(place.checkpoint, swarm="s", schema="m").save(Checkpoint(1, 2, {"x": torch.zeros(3)}))


WRITERS = {
    "node.toml": lambda place: place.write_config(NodeConfig()),
    "port": lambda place: place.keep_port(("/ip4/127.0.0.1/tcp/4001/p2p/x",)),
    "peers": lambda place: place.remember_peers(("a",)),
    "ticket": lambda place: place.keep_ticket(Ticket(1, 2)),
    "decisions.json": lambda place: place.keep_decisions(()),
    "identity.key": lambda place: Identity.load_or_create(place.key),
    "log.jsonl": write_log,
    "checkpoint.safetensors": save_checkpoint,
    "output.log": lambda place: os.close(private.keep(place.output, os.O_WRONLY | os.O_APPEND)),
}


@pytest.fixture
def open_umask():
    """Set the umask of a user whose programs write files readable by others."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_all_files_of_a_node_are_readable_by_their_owner_only(tmp_path, open_umask):
    place = RunDir.create(tmp_path / "n")
    for name, write in WRITERS.items():
        write(place)
        assert mode(place.path / name) == 0o600, name
    assert mode(place.path) == 0o700


def test_an_existing_log_is_made_private(tmp_path):
    (tmp_path / "log.jsonl").write_text("{}\n")
    (tmp_path / "log.jsonl").chmod(0o644)
    write_log(RunDir(tmp_path))
    assert mode(tmp_path / "log.jsonl") == 0o600
    assert (tmp_path / "log.jsonl").read_text().startswith("{}\n{")


def test_an_existing_directory_keeps_its_mode(tmp_path):
    """It may be a volume, or the mode may be intended."""
    (tmp_path / "n").mkdir(mode=0o750)
    RunDir.create(tmp_path / "n")
    assert mode(tmp_path / "n") == 0o750


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_a_link(name, tmp_path):
    """Neither at the file's own name nor at its temporary one."""
    place = RunDir.create(tmp_path / "n")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for link in (f"{name}.part", f".{name}.writing", *([] if name == "identity.key" else [name])):
        (place.path / link).symlink_to(victim)
    with suppress(ConfigError, OSError):  # a growing file: reported, and abandoned
        WRITERS[name](place)
    assert victim.read_bytes() == b"precious"


def test_a_partial_file_left_by_a_crash_is_replaced(tmp_path):
    for part in (tmp_path / "file.part", tmp_path / ".model.writing"):
        part.write_bytes(b"half")
    private.replace(tmp_path / "file", b"whole")
    tensor_file.write(tmp_path / "model", b"whole").replace(tmp_path / "model")
    assert [(tmp_path / name).read_bytes() for name in ("file", "model")] == [b"whole"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"]


def test_a_file_that_cannot_be_replaced_is_unchanged(tmp_path, monkeypatch):
    private.replace(tmp_path / "file", b"before")
    monkeypatch.setattr(Path, "replace", lambda *_: fail("no"))
    with pytest.raises(OSError, match="no"):
        private.replace(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"


def fail(why, *_):
    raise OSError(why)
