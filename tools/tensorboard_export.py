"""Recorded runs as TensorBoard event files: `python tools/tensorboard_export.py RECORD LOGDIR`, then `tensorboard --logdir LOGDIR`.

A converter and no writer inside the node: a node imports neither torch nor anything of TensorBoard's, and a record that was made without it
can still be looked at with it. Needs the extra `tensorboard`, whose own writer makes the files.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from starling.gossip.errors import ConfigError
from starling.node.status.record import RECORD_NAME, load
from starling.node.status.scalars import scalars
from starling.node.status.snapshot import StatusSnapshot
from starling.node.tracking.catalogue import run_of
from starling.node.tracking.libraries import TensorBoard

WRONG_INPUT = 2


def write(run: Sequence[StatusSnapshot], folder: Path) -> int:
    """Write one event file to `folder`, which is made; return the number of points.

    Raises:
        ConfigError: TensorBoard is not installed, or the folder cannot be made.
        OSError: the folder cannot be written.
    """
    tracker, count = TensorBoard(str(folder), run_of(run[0])), 0
    with closing(tracker):
        for each in scalars(run):
            tracker.add(each)
            count += 1
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 fine, 1 failed, 2 wrong input."""
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
            folder = options.logdir / name if names.count(name) == 1 else options.logdir / path.resolve().parent.as_posix().strip("/")
            print(f"{path}: {write(load(path), folder)} points in {folder}")
    except ConfigError as error:
        return _fail(1, str(error))
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
