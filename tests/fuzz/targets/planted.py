"""Decoders with a bug each: a fuzzer that does not find these finds nothing."""

from collections.abc import Iterator

from tests.fuzz.target import Target


def _opened(data: bytes) -> bool:
    """Four bytes that chance does not hit in a lifetime, one branch each: only who sees branches gets through."""
    if len(data) < 6 or data[0] != 0x53:
        return False
    if data[1] != 0x74:
        return False
    if data[2] != 0x61:
        return False
    return data[3] == 0x72


def _raises(data: bytes) -> bool:
    """Another exception than it promises."""
    if _opened(data):
        raise KeyError(data[4])
    return False


def _hangs(data: bytes) -> bool:
    """A loop that a length of 0 does not end."""
    while _opened(data):
        data = data[:4] + data[4 + data[4] :] if data[4] else data
    return False


def _believes(data: bytes) -> bool:
    """A length that is believed before anything of that length has arrived."""
    if _opened(data):
        bytearray(int.from_bytes(data[4:6], "big") << 40)
    return False


def _seeds() -> Iterator[bytes]:
    yield b"nothing like it"


RAISES = Target(_raises, _seeds)
HANGS = Target(_hangs, lambda: [b"Star\1\1\1\1"])
BELIEVES = Target(_believes, _seeds)
