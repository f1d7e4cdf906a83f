"""Messages to frames and back: msgpack with every bound checked before memory is spent."""

from typing import Any

import msgpack
import msgspec

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.wire import schema
from starling.gossip.wire.schema import MAX_FRAME_BYTES, Lane, Message

_MESSAGES: dict[Lane, Any] = {
    "control": schema.Control,
    "exchange": schema.PairwiseMessage | schema.PulledMessage,
    "state": schema.State,
    "crew": schema.Crew,
}
_ENCODER = msgspec.msgpack.Encoder()
_MAX_ITEMS = max(schema.MAX_RECORDS, schema.MAX_RUMORS, schema.MAX_CLAIMS)
"""Room for an array is made before its items are read, a thousand deep if it says so."""
_MAX_TEXT_BYTES = 4096


def encode(message: Message) -> bytes:
    """Return the frame of a message; equal messages give equal bytes. A payload is copied once."""
    return _ENCODER.encode(message)


def decode(lane: Lane, peer: str, frame: bytes | memoryview) -> Any:
    """Return the message in a frame of `peer`; RemoteProtocolError if it is not msgpack, beyond the bounds, or no message of this lane."""
    limit = MAX_FRAME_BYTES[lane]
    if len(frame) > limit:
        raise RemoteProtocolError(peer, "frame_too_long")
    try:
        plain = msgpack.unpackb(
            frame,
            raw=False,
            strict_map_key=True,
            max_bin_len=limit,
            max_str_len=_MAX_TEXT_BYTES,
            max_array_len=_MAX_ITEMS,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise RemoteProtocolError(peer, "frame_not_msgpack") from error
    try:
        return msgspec.convert(plain, type=_MESSAGES[lane], strict=True)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(peer, "frame_not_a_message") from error
