"""A run directory records how its last run ended, and never does so for a run that was killed."""

from contextlib import suppress

import pytest
import trio

from starling.gossip.errors import ConfigError, GossipError
from starling.node.daemon.events import Changes
from starling.node.daemon.observe.final import FinalWriter, first_error
from starling.node.daemon.progress import Progress
from starling.node.status.final import FINAL_NAME, load
from starling.node.status.snapshot import VERSION, StatusSnapshot
from starling.node.storage.run_dir import RunDir
from tests.harness.virtual import virtual


def written(path):
    """Return (run directory, progress, writer) of a node whose status has the state of its progress."""
    changes = Changes()
    place, progress = RunDir.create(path / "n"), Progress(changes.notify)
    writer = FinalWriter(
        place, progress, lambda: StatusSnapshot(VERSION, "me", "s", "name", 1.0, 2.0, progress.state, value=0.956), changes
    )
    return place, progress, writer


@virtual
async def test_a_finished_run_is_recorded_at_once_and_stays_finished_after_leaving(tmp_path):
    place, progress, writer = written(tmp_path)
    place.model.write_bytes(b"model")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.serve)
        progress.enter("training")
        await trio.sleep(1.0)
        assert load(place.path) is None
        progress.enter("finished")
        await trio.sleep(1.0)
        now = load(place.path)  # even if an error follows while the node lingers
    with writer:
        progress.enter("leaving")
    after = load(place.path)
    for each in (now, after):
        assert (each.ended, each.reason, each.model) == ("finished", "", "model.safetensors")
        assert (each.snapshot.state, each.snapshot.value) == ("finished", 0.956)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GossipError("the disk is full"), "the disk is full"),
        (ExceptionGroup("nursery", [ExceptionGroup("inner", [GossipError("the disk is full")])]), "the disk is full"),
        (KeyError("bug"), "KeyError: 'bug'"),
    ],
    ids=["plain", "group", "bug"],
)
def test_a_failed_run_keeps_its_reason(tmp_path, error, reason):
    place, progress, writer = written(tmp_path)
    progress.enter("training")
    with pytest.raises(type(error)), writer:
        raise error
    final = load(place.path)
    assert (final.ended, final.reason, final.snapshot.state, final.snapshot.problem) == ("failed", reason, "failed", reason)


@pytest.mark.parametrize("cancelled", [False, True])
@virtual
async def test_a_node_that_left_before_the_end_has_left(tmp_path, cancelled):
    place, progress, writer = written(tmp_path)
    with trio.CancelScope() as scope, writer:
        progress.enter("leaving")
        if cancelled:  # by a second signal
            scope.cancel()
        await trio.sleep(1.0)
    assert (load(place.path).ended, load(place.path).model) == ("left", "")


def test_refused_input_writes_no_final_status(tmp_path):
    place, _, writer = written(tmp_path)
    with pytest.raises(ConfigError), writer:
        raise ConfigError("task.kind: no such task")
    assert load(place.path) is None


@pytest.mark.parametrize("error", [None, ConfigError("task.kind: no such task")], ids=["left", "refused"])
def test_a_run_that_ends_before_anything_was_done_leaves_the_word_of_the_one_before(tmp_path, error):
    """Else its owner reads "left after 0 rounds" of a node with thousands of rounds."""
    place, progress, writer = written(tmp_path)
    progress.round = 2474
    with writer:
        progress.enter("leaving")
    fresh = StatusSnapshot(VERSION, "me", "s", "name", 3.0, 0.1, "leaving")
    again = FinalWriter(place, Progress(), lambda: fresh, writer.changes, place.last_final())
    place.drop_final()
    with suppress(ConfigError), again:
        if error is not None:
            raise error
    assert load(place.path) == again.before != None  # noqa: E711 - one run was recorded


def test_a_new_run_drops_the_file_and_a_full_disk_at_the_end_is_no_second_error(tmp_path):
    place, progress, writer = written(tmp_path)
    with writer:
        progress.enter("finished")
    place.drop_final()
    assert load(place.path) is None
    place.drop_final()
    (place.path / (FINAL_NAME + ".part")).mkdir()  # cannot be written
    with writer:
        pass
    assert load(place.path) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"ended":"won"}', b"[" * 100_000])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, damage):
    (tmp_path / FINAL_NAME).write_bytes(damage)
    with pytest.raises(ValueError, match=r"final\.json"):
        load(tmp_path)


def test_the_most_useful_of_several_errors_is_reported():
    group = BaseExceptionGroup("", [ValueError("bug"), BaseExceptionGroup("", [GossipError("net"), ConfigError("key")])])
    assert str(first_error(group)) == "key"
    assert isinstance(first_error(BaseExceptionGroup("", [ValueError("bug"), KeyboardInterrupt()])), KeyboardInterrupt)
