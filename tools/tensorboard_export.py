"""Recorded runs as TensorBoard event files: `python tools/tensorboard_export.py RECORD LOGDIR`, then `tensorboard --logdir LOGDIR`.

A converter and no writer inside the node: a node imports neither torch nor anything of TensorBoard's, and a record that was made without it
can still be looked at with it. Needs the extra `tensorboard`, whose own writer makes the files.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from starling.node.status.record import RECORD_NAME, load
from starling.node.status.snapshot import Point, StatusSnapshot

WRONG_INPUT = 2


class Scalar(NamedTuple):
    """One point of one chart."""

    tag: str
    round: int
    time_s: float
    """Unix time."""
    value: float


def scalars(run: Sequence[StatusSnapshot]) -> Iterator[Scalar]:
    """Scalars of a record: every point of its curves once, and its other figures once a round.

    Args:
        run: whole snapshots of one node, oldest first.
    """
    for before, now in pairwise((None, *run)):
        assert now is not None
        if before is not None and now.uptime_s < before.uptime_s:
            before = None  # noqa: PLW2901 — another start of the node, with curves of its own
        for tag, was, curve in (
            ("loss", before.loss_curve if before else (), now.loss_curve),
            (f"evaluation/{now.metric or 'value'}", before.value_curve if before else (), now.value_curve),
            ("consensus_distance", before.distance_curve if before else (), now.distance_curve),
        ):
            began = now.time_s - now.uptime_s
            yield from (Scalar(tag, each.round, began + each.time_s, each.value) for each in _new(was, curve))
        if before is None or now.round != before.round:
            for tag, value in _figures(now):
                if value is not None:
                    yield Scalar(tag, now.round, now.time_s, value)


def _new(before: tuple[Point, ...], now: tuple[Point, ...]) -> Iterator[Point]:
    return (point for point in now if not before or point.time_s > before[-1].time_s)


def _figures(now: StatusSnapshot) -> Iterator[tuple[str, float | None]]:
    yield "speed/local_steps_per_second", now.steps_per_s
    yield "speed/paced_local_steps_per_second", now.paced_per_s
    yield "swarm/members", now.members
    yield "swarm/edges", sum(peer.edge for peer in now.peers)
    yield "traffic/bytes_sent", now.bytes_sent
    yield "traffic/bytes_received", now.bytes_received
    for outcome in now.exchanges.__struct_fields__:
        yield f"exchanges/{outcome}", getattr(now.exchanges, outcome)
    yield "resources/cpu_cores", now.resources.cpu
    yield "resources/memory_bytes", now.resources.memory_bytes
    yield "resources/gpu_busy", now.resources.gpu
    yield "gradient_noise_scale", now.noise_scale
    yield "privacy/epsilon", now.epsilon


def write(run: Sequence[StatusSnapshot], folder: Path) -> int:
    """One event file in `folder`, which is made. -> points written

    Raises:
        ImportError: TensorBoard is not installed.
        OSError: the folder cannot be written.
    """
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 — an extra
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    writer, count = EventFileWriter(str(folder)), 0
    try:
        for each in scalars(run):
            value = Summary.Value(tag=each.tag, simple_value=each.value)
            writer.add_event(Event(wall_time=each.time_s, step=each.round, summary=Summary(value=[value])))
            count += 1
    finally:
        writer.close()
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. -> exit code: 0 fine, 1 failed, 2 wrong input"""
    parser = argparse.ArgumentParser(
        prog="python tools/tensorboard_export.py", description="Turn recorded runs into TensorBoard event files."
    )
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="a record.jsonl, or its run directory")
    parser.add_argument("logdir", type=Path, metavar="LOGDIR", help="where event files go, one folder per record")
    options = parser.parse_args(arguments)
    paths = [path / RECORD_NAME if path.is_dir() else path for path in options.records]
    names = [path.resolve().parent.name for path in paths]
    try:
        for path, name in zip(paths, names, strict=True):
            folder = (
                options.logdir / name
                if names.count(name) == 1
                else options.logdir / path.resolve().parent.as_posix().strip("/")
            )
            print(f"{path}: {write(load(path), folder)} points in {folder}")
    except ImportError as error:
        return _fail(1, f"needs TensorBoard ({error}); try `pip install 'starling-swarm[tensorboard]'`")
    except ValueError as error:
        return _fail(WRONG_INPUT, str(error))
    except OSError as error:
        return _fail(1, f"{options.logdir} cannot be written: {error.strerror}; name another folder")
    return 0


def _fail(code: int, why: str) -> int:
    print(f"starling: {why}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
