"""Sources for the paths on the command line: run directories, folders of demos, recorded runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starling.node.status.record import RECORD_NAME
from starling.tui.replay import Playback, replay
from starling.tui.source import DemoSource, SocketSource, StatusSource, node_dirs


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
    names = names_of(paths)
    files = {name: path for name, path in zip(names, paths, strict=True) if path.is_file()}
    records, playback = replay(files, clock) if files else ([], None)
    recorded = {source.name: source for source in records}
    sources = [
        recorded[name] if name in files else source_for(path, name, alone=len(paths) == 1)
        for name, path in zip(names, paths, strict=True)
    ]
    return sources, playback


def source_for(path: Path, name: str = "", *, alone: bool = True) -> StatusSource:
    """A demo's folder or a run directory, whichever `path` is.

    Args:
        path: a directory, which need not exist yet.
        name: what to call it; "": as the directory.
        alone: there is no other source, so a demo's nodes need no prefix.
    """
    if node_dirs(path):
        return DemoSource(path, prefix="" if alone else f"{name}/")
    return SocketSource(path, name=name)


def names_of(paths: Sequence[Path]) -> list[str]:
    """What each is called on the screen: its directory, with as many of those above as tell it from the others."""
    places = [path.resolve() for path in paths]
    places = [
        place.parent if place.name == RECORD_NAME else place.with_suffix("") if place.suffix == ".jsonl" else place
        for place in places
    ]
    names: list[str] = []
    for number, place in enumerate(places):
        others = {other.parts for other in places if other != place}
        length = 1
        while length < len(place.parts) and any(other[-length:] == place.parts[-length:] for other in others):
            length += 1
        name = "/".join(place.parts[-length:])
        again = places[:number].count(place)
        names.append(f"{name} ({again + 1})" if again else name)
    return names
