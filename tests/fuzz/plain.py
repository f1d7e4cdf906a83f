"""Data as in msgpack, JSON and TOML, generated and edited by choices: structures that mutated bytes rarely reach."""

from typing import Any

from tests.fuzz.target import Choices

NUMBERS = (0, 1, -1, 255, 2**31, 2**32, 2**53 + 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 1e-300, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "a", "digits", "alive", "s" + "a" * 32, "\0", "\x1b[31m", "a\nb", "\u202e", "é" * 40, "x" * 300, "/ip4/1.2.3.4/tcp/1", "1e9")

MSGPACK_LURES = (
    b"\xdc\x10\x00" * 1360,  # lists of 4,096 in each other
    b"\xdd\x00\x00\x0f\xff" * 800,
    b"\xdd\xff\xff\xff\xff" * 3,
    b"\xdf\xff\xff\xff\xff\xa1a",
    b"\x91" * 4000,  # only deep
    b"\x81\xa1a" * 1300,
    b"\xc6\xff\xff\xff\xffbytes",
    b"\xdb\xff\xff\xff\xfftext",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xd6\xff\x00\x00\x00\x00",  # a moment in time
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\x92\xa2hi\xc1",
    b"\x81\xc4\x01a\x01",  # a table with a key that is no text
    b"\x81\x90\x01",
)
JSON_LURES = (
    b"[" * 4000,
    b'{"a":' * 1300,
    b"9" * 4000,
    b"-1e99999",
    b'"\\ud800"',
    b'"\xff"',
    b"NaN",
    b"[Infinity,-Infinity]",
    b"{}",
    b"null",
    b"0",
)


def value(choices: Choices, depth: int = 3, *, binary: bool = True) -> Any:
    """Any data up to `depth` containers deep; with `binary`, bytes may occur, also as keys of tables."""
    match choices.below(9 if depth else 7):
        case 0:
            return None
        case 1:
            return choices.flag()
        case 2:
            return choices.of(NUMBERS)
        case 3:
            return choices.of(FLOATS)
        case 4:
            return choices.of(TEXTS)
        case 5:
            return choices.piece().decode("latin-1")
        case 6:
            return choices.piece() if binary else choices.number()
        case 7:
            return [value(choices, depth - 1, binary=binary) for _ in range(choices.below(5))]
        case _:
            keys = (_key(choices, binary=binary) for _ in range(choices.below(4)))
            return {key: value(choices, depth - 1, binary=binary) for key in keys}


def edited(plain: Any, choices: Choices, *, binary: bool = True) -> Any:
    """A copy of some plain data in which something, at any depth, is replaced, removed or added."""
    if isinstance(plain, dict) and plain and choices.below(8):
        key = choices.of(sorted(plain, key=str))
        return {name: edited(held, choices, binary=binary) if name == key else held for name, held in plain.items()}
    if isinstance(plain, list) and plain and choices.below(8):
        at = choices.below(len(plain))
        return [edited(held, choices, binary=binary) if i == at else held for i, held in enumerate(plain)]
    new = value(choices, binary=binary)
    match plain, choices.below(4):
        case dict(), 0:
            return {**plain, _key(choices, binary=binary): new}
        case dict(), 1:
            return dict(list(plain.items())[1:])
        case list(), 0:
            return [*plain, new]
        case list(), 1:
            return plain[:-1]
        case list(), 2:
            return plain * choices.below(60)
        case _:
            return new


def _key(choices: Choices, *, binary: bool) -> Any:
    if binary and choices.below(3) == 0:
        return choices.piece()
    return choices.of((*TEXTS, "kind", "params", "name", "seed"))
