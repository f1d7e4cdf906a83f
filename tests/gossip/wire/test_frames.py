"""Exchange messages byte for byte: another version of this program must still be understood."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import (
    Ack,
    Busy,
    Close,
    Closed,
    NotNow,
    Pull,
    Pulled,
    Request,
    Reset,
    Response,
    Solicit,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "exchange.json"
VIEW = bytes(range(16))
MESSAGES = {
    "request": Request(2**60 + 7, 3, 2, 41, VIEW, 0.25, 0.75, b"\x00\x01values\xff"),
    "response": Response(2**60 + 7, 3, b"\x02difference"),
    "ack": Ack(2**60 + 7, 3),
    "busy": Busy(2**60 + 7, 3, "late", 44),
    "busy_to_a_poke": Busy(2**60 + 7, 0, "full", 44),
    "poke": Solicit(2**60 + 7, 41, VIEW),
    "reset": Reset(2**60 + 7),
    "close": Close(2**60 + 7, 3),
    "closed": Closed(2**60 + 7, 3),
    "pull": Pull(2**60 + 7, 41),
    "pulled": Pulled(
        2**60 + 7, 42, 1_700_000_000_123, bytes(range(32)), bytes(range(64)), b"\x00\x01values\xff",
    ),
    "not_now": NotNow(2**60 + 7, 44, "early"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_every_exchange_message_has_its_golden_bytes(name):
    """Tags and field order never change; a node of tomorrow reads a node of today."""
    golden = json.loads(GOLDEN.read_text())
    assert encode(MESSAGES[name]).hex() == golden[name]
    assert decode("exchange", "peer", bytes.fromhex(golden[name])) == MESSAGES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_shares_no_memory_with_the_buffer_it_came_in(name):
    """A payload may be kept for long; the buffer of a frame may not be, nor change what was read from it."""
    frame = bytearray(encode(MESSAGES[name]))
    message = decode("exchange", "peer", frame)
    frame[:] = bytes(len(frame))
    frame.clear()  # an error while anything points into it
    assert message == MESSAGES[name]
    assert hash(message) == hash(MESSAGES[name]), "all parts are immutable"


def test_the_golden_file_names_these_messages_only():
    """A message that is gone is noticed, too."""
    assert json.loads(GOLDEN.read_text()).keys() == MESSAGES.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_a_cut_frame_is_a_fault_of_the_peer(name):
    """Whatever arrives, the answer is one exception type."""
    frame = encode(MESSAGES[name])
    for end in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode("exchange", "peer", frame[:end])


@pytest.mark.parametrize("message", [Busy, NotNow])
def test_every_reason_that_can_be_read_is_given_by_somebody(message):
    """A word that no node says is a state that nobody has thought through: who is shut out, for one, is told nothing."""
    (field,) = (field for field in msgspec.inspect.type_info(message).fields if field.name == "reason")
    root = Path(__file__).parents[3]
    sources = [*(root / "gossip" / "exchange").glob("*.py"), *(root / "node" / "daemon").glob("*.py")]
    written = "\n".join(source.read_text() for source in sources if source.name != "commands.py")
    assert {reason for reason in field.type.values if f'"{reason}"' not in written} == set()
