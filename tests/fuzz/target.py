"""What a decoder under attack is, and how bytes become decisions where the attack is a sequence of acts and not one message."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CORPUS = Path(__file__).parent / "corpus"
SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder and its promise.

    Args:
        run: takes any bytes -> whether they were accepted (True) or refused in the documented way (False). Whatever it raises is a bug.
        seeds: inputs that are accepted; where the fuzzers start.
        lures: what decoders of this format have fallen for elsewhere; the fuzzers start here, too.
        reach: branches to be taken at least, some six tenths of what the seeds take now: with fewer the attack passes the decoder by.
        most_bytes: longest input that is tried.
        spare_bytes: memory that an input may take however short it is, the checks of `run` included.
        bytes_per_byte: memory that each further byte of it may take.
    """

    run: Callable[[bytes], bool]
    seeds: Callable[[], Iterable[bytes]]
    lures: Callable[[], Iterable[bytes]] = tuple
    reach: int = 0
    most_bytes: int = 4096
    spare_bytes: int = 1 << 20
    bytes_per_byte: int = 256


def regressions(name: str) -> list[Path]:
    """Inputs that once broke a target's promise."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def load(where: str) -> Target:
    """The target that "module:NAME" below `tests.fuzz.targets` says."""
    module, _, name = where.partition(":")
    target = getattr(importlib.import_module(f"tests.fuzz.targets.{module}"), name)
    assert isinstance(target, Target)
    return target


def reason_of(error: BaseException, allowed: Container[str] | None = None, peer: str = "") -> str:
    """A refusal's reason, which is to be counted and shown: one snake_case word.

    Args:
        error: the refusal.
        allowed: reasons that are documented; None: any.
        peer: who must be blamed, if anybody.
    """
    reason = getattr(error, "reason", None) or str(error)
    assert SNAKE_CASE.fullmatch(reason), f"{reason!r} is no reason"
    assert allowed is None or reason in allowed, f"{reason} is not documented"
    assert getattr(error, "peer", peer) == peer, "another is blamed"
    return reason


def one_line(error: BaseException) -> str:
    """A refusal's text for a person: one line, not endless."""
    text = str(error)
    assert text, "a refusal says why"
    assert len(text) < 4000, "a refusal is short"
    assert text.splitlines() == [text], f"{text!r} is not one line"
    return text


class Choices:
    """Decisions read from the front of some bytes. When they are spent all further ones are 0.

    Args:
        data: the bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        """The next `count` bytes, fewer at the end."""
        taken = self._data[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))

    def below(self, n: int) -> int:
        """0 … n − 1 from one byte, or two if n > 256."""
        width = 1 if n <= 256 else 2
        return int.from_bytes(self.take(width), "little") % n

    def flag(self) -> bool:
        """From one byte."""
        return bool(self.below(2))

    def of(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def piece(self) -> bytes:
        """Bytes behind their length in one byte."""
        return self.take(self.below(256))

    def number(self, most: int = 2**62) -> int:
        """0 … most: mostly small, or close to `most`, or anything."""
        form = self.below(4)
        if form == 0:
            return self.below(4)
        if form == 1:
            return min(self.below(256), most)
        if form == 2:
            return max(0, most - self.below(4))
        return int.from_bytes(self.take(8), "little") % (most + 1)
