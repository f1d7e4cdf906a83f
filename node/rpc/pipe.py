"""Frames between daemon and engine: four bytes of length, then msgpack `[call id, message]`.

A stream of such frames runs each way over a socket pair. A request carries an id that its sender has not used before; the one
reply to it carries the same id, and replies may come in another order than requests. Both ends are one program on one machine,
so a frame that cannot be read is a bug and never a peer's doing. Neither trio nor torch is imported here: the daemon reads the
same frames with trio, and the child process with the blocking `Pipe`.
"""

import socket
import struct
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import structs

from starling.gossip.errors import ConfigError, LocalProtocolError
from starling.node import platform
from starling.node.config.parts import convert
from starling.node.config.schema import Manifest
from starling.node.rpc.calls import Call, Later, Open, Reply, Request

HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = (1 << 32) - (1 << 20)  # nearly all that the length in front can say: a float32 model of 1,073 M parameters


class Failed(Call, frozen=True, tag="failed"):
    """The engine's last message, with call id 0: it failed and ends. `message` is one line for a person.

    `during` says what it did, as "local step 12", and `place` where the error was raised. `refused`: the owner has to mend it.
    """

    message: str
    during: str = ""
    place: str = ""
    refused: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS = msgspec.msgpack.Decoder(tuple[int, Open[dict[str, Any]] | Later])
_REPLIES = msgspec.msgpack.Decoder(tuple[int, Reply | Failed])


def encode(call_id: int, message: Call) -> bytearray:
    """Return a whole frame, its length in front; a payload is copied once. Raises LocalProtocolError: longer than MAX_FRAME_BYTES."""
    frame = bytearray(HEADER.size)
    _ENCODER.encode_into((call_id, message), frame, HEADER.size)
    count = len(frame) - HEADER.size
    if count > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a {type(message).__name__} of {count} bytes exceeds {MAX_FRAME_BYTES}")
    HEADER.pack_into(frame, 0, count)
    return frame


def body_bytes(header: bytes | bytearray) -> int:
    """Return the number of bytes that follow a header. Raises LocalProtocolError: more than MAX_FRAME_BYTES."""
    length: int = HEADER.unpack(header)[0]
    if length > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
    return length


def decode_request(body: bytes | bytearray) -> tuple[int, Request]:
    """Call id and request. Raises LocalProtocolError: not a request."""
    try:
        call_id, request = _REQUESTS.decode(body)
        if not isinstance(request, Open):
            return call_id, request
        return call_id, Open(**structs.asdict(request) | {"manifest": convert(request.manifest, Manifest)})
    except (ConfigError, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise LocalProtocolError(f"not a request: {error}") from error


def decode_reply(body: bytes | bytearray) -> tuple[int, Reply | Failed]:
    """Call id and reply. Raises LocalProtocolError: not a reply."""
    try:
        return _REPLIES.decode(body)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise LocalProtocolError(f"not a reply: {error}") from error


class Pipe:
    """The child's end of a connected stream socket, which its owner closes: blocking, one frame at a time, read by one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock

    def ready(self) -> bool:
        """`receive` would not wait: there are bytes, or the other end closed."""
        return platform.readable(self._socket)

    def wait(self, sources: Iterable[int] = (), timeout_s: float | None = None) -> None:
        """Wait until `ready` (another thread may check it too), a further descriptor is readable, or the timeout; None: no timeout."""
        platform.readable(self._socket, *sources, timeout_s=timeout_s)

    def send(self, call_id: int, message: Call) -> None:
        """Write one frame. Raises OSError when the other end is closed."""
        self._socket.sendall(encode(call_id, message))

    def receive(self) -> tuple[int, Request]:
        """Wait for one request. Raises EOFError: the other end closed, or died in the middle of a frame."""
        return decode_request(self._read(body_bytes(self._read(HEADER.size))))

    def reply(self) -> tuple[int, Reply | Failed]:
        """Wait for one reply, at the other end of a pipe. Raises EOFError as `receive`."""
        return decode_reply(self._read(body_bytes(self._read(HEADER.size))))

    def _read(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            try:
                received = self._socket.recv_into(view)
            except ConnectionResetError as error:
                raise EOFError from error
            if received == 0:
                raise EOFError
            view = view[received:]
        return buffer
