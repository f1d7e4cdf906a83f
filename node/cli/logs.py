"""`starling logs`: print a node's log, for people or as JSON lines, once or continuously.

The node appends to log.jsonl; at 8 MiB that becomes log.jsonl.1, in place of the one before, and a new file begins. A follower keeps
open what it reads, so what is renamed or deleted under it is read to its end, and then it goes to the next one.
"""

import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, Self

import click
import msgspec

from starling.gossip.errors import GossipError
from starling.node import platform
from starling.node.cli.common import console, dir_and_json, discard_output, emit_plain
from starling.node.cli.help import command
from starling.node.status.control import typed
from starling.node.status.log_line import LOG_NAME, log_line
from starling.node.status.record import earlier
from starling.node.storage.run_dir import RunDir

LEVELS = ("debug", "info", "warning", "error", "critical")

LAST = 100
POLL_S = 0.2
STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red"}

Line = dict[str, Any]


@command(
    ("starling logs --dir starling-2", f"the last {LAST} events"),
    ("starling logs -f --level warning", "warnings and errors as they come; Ctrl-C ends it"),
    ("starling logs -n 100000 --json", "everything that is kept, for a program"),
)
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows, through restarts of the node; Ctrl-C ends it.")
@click.option("-n", "count", type=click.IntRange(0), default=LAST, metavar="N", help="Begin with the last N events.")
@click.option("--level", type=click.Choice(LEVELS), default="info", help="Leave out events below this level.")
@dir_and_json
def logs(follow: bool, count: int, level: str, run_dir: Path, as_json: bool) -> None:
    """Print the log of the node in --dir, whether it runs or not.

    Times are local; docs/operating.md says what the events mean. With --json each line is one event as the file has it.
    """
    path = _log_of(run_dir)
    if not follow and not path.exists() and not earlier(path).exists():
        raise GossipError(f"{run_dir} has no log yet; start the node with `starling run --dir {typed(run_dir)}`")
    show = _printer(as_json)
    try:
        with Reader(path, LEVELS[LEVELS.index(level) :]) as reader:
            for event in deque(reader.read(), maxlen=count):
                show(event)
            while follow and _is_read():
                for event in reader.read():
                    show(event)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # `| head`
        discard_output()


class Reader:
    """Reads events of these levels from a log as they are written, each once. The file need not exist yet."""

    def __init__(self, path: Path, levels: Collection[str] = LEVELS) -> None:
        self._path, self._levels = path, levels
        self._file: IO[bytes] | None = None
        self._before: IO[bytes] | None = None  # kept open, so that no new file gets its inode number
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._before, self._file):
            if file is not None:
                file.close()

    def read(self) -> Iterator[Line]:
        """Yield all unread lines, except those that are no event, such as the torn last one of a killed node.

        Raises GossipError: a file is there and cannot be read.
        """
        if self._file is None and not self._open(earlier(self._path)):
            self._open(self._path)
        while self._file is not None:
            yield from self._lines()
            following = self.next_file()
            if following is None:
                return
            yield from self._lines()  # lines written after the end was reached and before the file was renamed
            if not self._open(following):
                return

    def _lines(self) -> Iterator[Line]:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # it was emptied
            self._file.seek(0)
            self._rest = b""
        while chunk := self._file.read(1 << 20):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                event = _event(line)
                if event.get("level") in self._levels:
                    yield event

    def next_file(self) -> Path | None:
        """Return the file after the one that was read to its end; None: there is none yet."""
        ours, before, newest, older = map(_identity, (self._file, self._before, self._path, earlier(self._path)))
        if newest == ours:
            return None
        # After two rotations since the last read, the lines between them are in the older file.
        return self._path if older in {None, ours, before} else earlier(self._path)

    def _open(self, path: Path) -> bool:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise GossipError(f"cannot read {path}: {error.strerror}; look with `ls -l {typed(path)}`") from error
        if self._before is not None:
            self._before.close()
        self._before, self._file, self._rest = self._file, file, b""
        return True


def _identity(file: IO[bytes] | Path | None) -> tuple[int, int] | None:
    """Return device and inode of an open file, or of a path if a file is there."""
    if file is None:
        return None
    try:
        found = file.stat() if isinstance(file, Path) else os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _event(line: bytes) -> Line:
    """Return the event of a line; empty for a line that is none."""
    try:
        return msgspec.json.decode(line, type=Line)
    except (msgspec.DecodeError, RecursionError):
        return {}


def _log_of(run_dir: Path) -> Path:
    """Return the path of the log, which need not exist yet. Raises ConfigError: there is neither a log nor a node."""
    path = run_dir / LOG_NAME
    if not os.access(path, os.F_OK):  # also read a log that was copied from elsewhere
        RunDir.existing(run_dir)
    return path


def _is_read() -> bool:
    """Wait for the next poll; False if the reader of our pipe has closed it."""
    try:
        piped = stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # no real file
        piped = False
    if not piped:
        time.sleep(POLL_S)
        return True
    return not platform.closes(sys.stdout.fileno(), POLL_S)


def _printer(as_json: bool) -> Callable[[Line], None]:
    if as_json:
        return emit_plain
    from rich.text import Text

    out = console()

    def show(event: Line) -> None:
        at = event.get("time")
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if isinstance(at, float | int) else "–"
        style = STYLES.get(str(event.get("level")), "")
        out.print(Text(log_line(event, when, _figure), style=style), soft_wrap=True)

    return show


def _figure(value: object) -> str:
    """Format a value: four significant digits, a dash for what is not known, lists without their brackets."""
    match value:
        case None:
            return "–"
        case float():
            return f"{value:.4g}"
        case list():
            return ",".join(map(_figure, value))
        case _:
            return str(value)
