"""Sources for the paths on the command line: run directories, folders of demos, recorded runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starling.tui.replay import Playback, replay
from starling.tui.source import StatusSource, source_for


def open_sources(
    paths: Sequence[Path], clock: Callable[[], float] = time.monotonic
) -> tuple[list[StatusSource], Playback | None]:
    """Sources in the order of the arguments, and the time axis of those that are records.

    Args:
        paths: directories, which need not exist yet, or files written by a node; >= 1.
        clock: seconds, monotonic, of a replay.

    Raises:
        ValueError: a file is no record; one line that names it.
    """
    files = [path for path in paths if path.is_file()]
    records, playback = replay(files, clock) if files else ([], None)
    recorded = iter(records)
    return [next(recorded) if path in files else source_for(path) for path in paths], playback
