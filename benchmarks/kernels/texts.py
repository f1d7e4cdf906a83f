"""Texts for training, one file each: from a folder, or synthetic.

Torch-free: the command line calls it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from starling.gossip.errors import ConfigError

SIZE, WORDS, LETTERS = 100_000, 500, 13  # bytes of a made-up text, about; words of its language; letters of these
_DIGITS = 16  # digits of a SHA-256: enough to distinguish data sets


class Text(NamedTuple):
    """Data of a cell: its name, with a fingerprint of the texts, and their folder."""

    shown: str
    path: Path | None = None


def prepare(wanted: Mapping[str, int], data: Path | None, into: Path) -> dict[str, Text]:
    """Write the texts that are wanted, a file for each node, to a folder.

    Args:
        wanted: "languages" or "authors" -> nodes.
        data: a folder with text/languages/*.txt and text/authors/*.txt, of which the first are copied; None: texts are made up.
        into: an empty folder.

    Raises:
        ConfigError: there are not as many texts as nodes.
    """
    prepared = {}
    for name, nodes in wanted.items():
        folder, digest = into / name, hashlib.sha256()
        folder.mkdir()
        for file, content in _MADE_UP[name](nodes) if data is None else _read(data / "text" / name, nodes):
            (folder / file).write_bytes(content)
            digest.update(hashlib.sha256(content).digest())
        shown = f"{'made-up ' if data is None else ''}{name} {digest.hexdigest()[:_DIGITS]}"
        prepared[name] = Text(shown, folder)
    return prepared


def find(data: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of data: the given one, else that of STARLING_DATA or ../shared/data where they have texts, else None.

    Raises:
        ConfigError: the given one does not exist.
    """
    if data is not None:
        if not data.expanduser().is_dir():
            raise ConfigError(f"--data: {data} is no folder; name one with text/languages and text/authors, or leave it out")
        return data.expanduser()
    usual = (environment.get("STARLING_DATA"), "../shared/data")
    return next((Path(each) for each in usual if each and (Path(each) / "text").is_dir()), None)


def _read(source: Path, count: int) -> Iterator[tuple[str, bytes]]:
    files = sorted(source.glob("*.txt"))[:count]
    if len(files) < count:
        raise ConfigError(
            f"--data: {source} must hold {count} files *.txt, got {len(files)}; name a folder with text/languages and text/authors"
        )
    for file in files:
        yield file.name, file.read_bytes()


def _languages(count: int) -> Iterator[tuple[str, bytes]]:
    """Make texts of languages with letters of their own."""
    for number in range(count):
        chance = np.random.default_rng((0, number))
        yield f"{number}.txt", _text(_words(chance, 65 + LETTERS * number), chance)


def _authors(count: int) -> Iterator[tuple[str, bytes]]:
    """Make texts of authors who use the words of one language at other frequencies."""
    words = _words(np.random.default_rng(1), 97)
    for number in range(count):
        chance = np.random.default_rng((1, number))
        yield f"{number}.txt", _text([words[place] for place in chance.permutation(WORDS)], chance)


def _words(chance: np.random.Generator, first: int) -> list[bytes]:
    """Draw words of letters from a byte on."""
    return [bytes(chance.integers(first, first + LETTERS, length, np.uint8)) for length in chance.integers(2, 9, WORDS)]


def _text(words: Sequence[bytes], chance: np.random.Generator) -> bytes:
    """Draw words, the first most often: by Zipf's law."""
    shares = 1.0 / np.arange(1, len(words) + 1)
    return b" ".join(words[place] for place in chance.choice(len(words), SIZE // 6, p=shares / shares.sum()))


_MADE_UP: Mapping[str, Callable[[int], Iterator[tuple[str, bytes]]]] = MappingProxyType({"languages": _languages, "authors": _authors})
