"""Frames are refused by their length before anything of them is decoded."""

import pytest

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import MAX_FRAME_BYTES


@pytest.mark.parametrize("lane", MAX_FRAME_BYTES)
@pytest.mark.parametrize(("more", "reason"), [(0, "frame_not_a_message"), (1, "frame_too_long")])
def test_one_byte_beyond_the_limit_of_a_lane_is_too_long(lane, more, reason):
    """The longest frame allowed is looked at: a string of zero bytes, which is no message."""
    frame = b"\xc6" + (MAX_FRAME_BYTES[lane] - 5 + more).to_bytes(4, "big") + bytes(MAX_FRAME_BYTES[lane] - 5 + more)
    with pytest.raises(RemoteProtocolError, match=reason):
        decode(lane, "a", frame)
