"""Decoders under attack, and bytes as choices where the attack is a sequence of events."""

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
    """One decoder and its contract.

    Args:
        run: takes any bytes -> whether they were accepted (True) or refused in the documented way (False). Any exception is a bug.
        seeds: inputs that are accepted; the fuzzers start with them.
        lures: inputs that broke decoders of this format elsewhere; the fuzzers start with them, too.
        reach: fewest branches to be covered, about 60 % of those the seeds cover: with fewer the attack misses the decoder.
        most_bytes: longest input that is tried.
        spare_bytes: memory that any input may take, the checks of `run` included.
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
    """The target at "module:NAME" below `tests.fuzz.targets`."""
    module, _, name = where.partition(":")
    target = getattr(importlib.import_module(f"tests.fuzz.targets.{module}"), name)
    assert isinstance(target, Target)
    return target


def reason_of(error: BaseException, allowed: Container[str] | None = None, peer: str = "") -> str:
    """A refusal's reason, one snake_case word; `allowed` are the documented ones, None: any; `peer` must be named if a peer is."""
    reason = getattr(error, "reason", None) or str(error)
    assert SNAKE_CASE.fullmatch(reason), f"{reason!r} is no reason"
    assert allowed is None or reason in allowed, f"{reason} is not documented"
    assert getattr(error, "peer", peer) == peer, "another peer is blamed"
    return reason


def one_line(error: BaseException) -> str:
    """A refusal's text for a person: one bounded line."""
    text = str(error)
    assert text, "a refusal says why"
    assert len(text) < 4000, "a refusal is short"
    assert text.splitlines() == [text], f"{text!r} is not one line"
    return text


def prefixed(prefix: bytes, *inputs: bytes) -> list[bytes]:
    """The inputs, each after the bytes that select a setting of its target."""
    return [prefix + data for data in inputs]


class Choices:
    """Choices read from the front of some bytes; 0 after their end."""

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
        return self.take(len(self._data))

    def below(self, n: int) -> int:
        """0 … n − 1 from one byte, or two if n > 256."""
        return int.from_bytes(self.take(1 if n <= 256 else 2), "little") % n

    def flag(self) -> bool:
        return bool(self.below(2))

    def of(self, items: Sequence[T]) -> T:
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
