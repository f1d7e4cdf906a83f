"""Frames: golden bytes of every message, limits, and memory."""

import json
import math
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.wire import schema as wire
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import MAX_FRAME_BYTES
from tests.harness.detectors import record

GOLDEN = {
    lane: json.loads((Path(__file__).parents[2] / "golden" / f"{lane}.json").read_text())
    for lane in ("exchange", "control", "state", "crew")
}
VIEW = bytes(range(16))
EXCHANGE = {
    "request": wire.Request(2**60 + 7, 3, 2, 41, VIEW, 0.25, 0.75, b"\x00\x01values\xff"),
    "request_in_part": wire.Request(2**60 + 7, 3, 2, 41, VIEW, 0.25, 0.75, b"\x00\x01values\xff", 0.625),
    "request_that_compares": wire.Request(2**60 + 7, 3, 2, 41, VIEW, 0.25, 0.75, b"\x00\x01values\xff", 0.625, 1.75),
    "response": wire.Response(2**60 + 7, 3, b"\x02difference"),
    "response_in_part": wire.Response(2**60 + 7, 3, b"\x02difference", 0.625),
    "response_of_less": wire.Response(2**60 + 7, 3, b"\x02difference", 0.625, 0.5),
    "response_clipped": wire.Response(2**60 + 7, 3, b"\x02difference", 0.625, 0.5, 0.125),
    "ack": wire.Ack(2**60 + 7, 3),
    "busy": wire.Busy(2**60 + 7, 3, "late", 44),
    "busy_to_a_poke": wire.Busy(2**60 + 7, 0, "full", 44),
    "poke": wire.Solicit(2**60 + 7, 41, VIEW),
    "reset": wire.Reset(2**60 + 7),
    "close": wire.Close(2**60 + 7, 3),
    "closed": wire.Closed(2**60 + 7, 3),
    "check": wire.Check(2**60 + 7, 3, 1),
    "check_lost": wire.Check(2**60 + 7, 3, 2, lost=True),
    "pull": wire.Pull(2**60 + 7, 41),
    "pulled": wire.Pulled(2**60 + 7, 42, 1_700_000_000_123, bytes(range(32)), bytes(range(64)), b"\x00\x01values\xff"),
    "pull_of_who_lacks": wire.Pull(2**60 + 7, 41, lacks=True),
    "pulled_of_who_has": wire.Pulled(
        2**60 + 7, 42, 1_700_000_000_123, bytes(range(32)), bytes(range(64)), b"\x00\x01values\xff", bytes(range(8))
    ),
    "relay": wire.Relay(2**60 + 7, 41, "12D3KooWother"),
    "relayed": wire.Relayed(
        2**60 + 7, wire.Claim("12D3KooWother", 1_700_000_000_123, 41, bytes(range(32)), bytes(range(64))), b"\x00\x01values\xff"
    ),
    "not_now": wire.NotNow(2**60 + 7, 44, "early"),
    "wake": wire.Wake(83, True, (wire.Claim("12D3KooWpeer", 1_700_000_000_000, 83, bytes(32), bytes(64)),)),
    "wake_asks": wire.Wake(0, False, ()),
}
RECORD = record("12D3KooWpeer", 1_700_000_000_000, 3, addresses=("/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWpeer",))
DIGEST = bytes(16)
DOUBT = wire.Rumor("12D3KooWother", 1_700_000_000_001, 2, "suspect", "12D3KooWpeer")
CONTROL = {
    "hello": wire.Hello(RECORD, DIGEST, 12.5),
    "probe": wire.Probe(1, DIGEST, 12.5, (DOUBT,)),
    "probe_short": wire.Probe(1, DIGEST, 12.5),
    "acknowledge": wire.Acknowledge(1, DIGEST, 12.5, "12D3KooWother", (DOUBT,)),
    "acknowledge_short": wire.Acknowledge(1, DIGEST, 12.5),
    "probe_for": wire.ProbeFor(2**62, "12D3KooWother"),
    "spread": wire.Spread((RECORD,), (DOUBT,)),
    "compare": wire.Compare((wire.Branch("0f", VIEW),), (wire.Leaf("1", b"\x10" + bytes(15)),)),
    "compare_whole": wire.Compare((wire.Branch("", VIEW),)),
    "want": wire.Want((bytes(range(8)),)),
    "sync": wire.Sync((RECORD,)),
    "farewell": wire.Farewell(msgspec.structs.replace(RECORD, status="left")),
    "hello_seat": wire.Hello(msgspec.structs.replace(RECORD, seat=5), DIGEST, 12.5),
    "hello_credential": wire.Hello(msgspec.structs.replace(RECORD, credential=b"credential"), DIGEST, 12.5),
    "revoked": wire.Revoked((wire.Revocation(b"chain", "12D3KooWpeer", b"signature"),), DIGEST, True),
    "revoked_short": wire.Revoked((), DIGEST),
    "told": wire.Attestations((wire.Claim("12D3KooWpeer", 1_700_000_000_000, 7, bytes(32), bytes(64)),)),
    "evidence": wire.Evidence("equivocation", "12D3KooWpeer", b"one", b"other"),
    "beacon": wire.Beacon(7, bytes(range(64))),
    "beacon_query": wire.BeaconQuery(7),
    "dial_me": wire.DialMe(2**60 + 7, 4001),
    "dialed": wire.Dialed(2**60 + 7, "192.0.2.7", True),
    "stop_vote": wire.StopVote(40, True),
}
STATE = {
    "manifest_query": wire.ManifestQuery("a" * 52),
    "manifest_reply": wire.ManifestReply("a" * 52, b"canonical"),
    "state_query": wire.StateQuery(2**60 + 7),
    "state_query_outer": wire.StateQuery(2**60 + 7, bytes(range(8))),
    "state_offer": wire.StateOffer(2**60 + 7, 3, 41, 1 << 20, bytes(range(32)), bytes(range(32))),
    "state_offer_none": wire.StateOffer(2**60 + 7, 0, 41, 0, b"", b""),
    "chunk_query": wire.ChunkQuery(3, 1 << 18),
    "chunk": wire.Chunk(3, 1 << 18, b"\x00\x01values\xff"),
    "digests_query": wire.DigestsQuery(3, 64),
    "digests": wire.Digests(3, 64, bytes(range(32))),
    "seat_query": wire.StageQuery(2**60 + 7),
    "seat_reply": wire.StageReply(2**60 + 7, 2),
}
CREW_ID = bytes(range(8))
CREW = {
    "ready": wire.Ready(CREW_ID, 3, 41, 820, 20, False, (800, 820), (800,), 801, 17),
    "ready_short": wire.Ready(CREW_ID, 0, 0, 0, 0, True),
    "ready_frees": wire.Ready(CREW_ID, 0, 0, 820, 0, False, freed=(1,)),
    "ready_waits": wire.Ready(CREW_ID, 0, 0, 820, 0, False, waits=(wire.Waits(2, 3, 820, 7, bytes(range(64))),)),
    "ready_answers": wire.Ready(CREW_ID, 3, 41, 820, 20, False, answers=True),
    "ready_signed": wire.Ready(CREW_ID, 3, 41, 820, 20, False, signature=bytes(range(64)), heard_at=2, heard=bytes(range(16))),
    "minutes": wire.Minutes(CREW_ID, 3, (wire.Said(1, wire.Ready(CREW_ID, 3, 41, 820, 20, False, signature=bytes(range(64)))),)),
    "forward": wire.Forward(CREW_ID, 3, 820, 7, b"\x01activation", b"\x00labels"),
    "backward": wire.Backward(CREW_ID, 3, 820, 7, b"\x01gradient"),
    "told": wire.StepReport(CREW_ID, 3, 820, 0.25, 2.5, 0.0, 0, True),
    "told_short": wire.StepReport(CREW_ID, 3, 820, 0.0),
    "piece": wire.Piece(CREW_ID, 2, 820, 1 << 21, 1 << 20, b"\x00\x01bytes\xff"),
    "kept": wire.PieceStored(CREW_ID, 2, 820),
}
MESSAGES = {
    (lane, name): it
    for lane, messages in (("exchange", EXCHANGE), ("control", CONTROL), ("state", STATE), ("crew", CREW))
    for name, it in messages.items()
}


@pytest.mark.parametrize(("lane", "name"), MESSAGES)
def test_every_message_has_its_golden_bytes(lane, name):
    assert encode(MESSAGES[lane, name]).hex() == GOLDEN[lane][name]
    assert decode(lane, "peer", bytes.fromhex(GOLDEN[lane][name])) == MESSAGES[lane, name]


OLDER = [(lane, name) for lane in ("exchange", "state", "crew") for name in GOLDEN[lane] if "_before_" in name]


@pytest.mark.parametrize(("lane", "name"), OLDER)
def test_messages_without_appended_fields_have_their_defaults(lane, name):
    """Nodes before 1.3 confirmed all of a correction; those before 1.4 reported nothing about earlier rounds and freed no stage; before
    1.5 all asked for models, and none for results; before 2 stages signed nothing that they said at meetings.
    """
    before, name = GOLDEN[lane][name], name.partition("_before_")[0]
    assert decode(lane, "peer", bytes.fromhex(before)) == MESSAGES[lane, name]


NO_SHARE = (-0.1, 1.1, math.nan, math.inf)
BOUNDED = [("response", "share", NO_SHARE), ("response", "clip", NO_SHARE), ("request", "borne", NO_SHARE), ("response", "borne", NO_SHARE)]


@pytest.mark.parametrize(("name", "field", "wrong"), [("request", "reference", (-1.0, math.nan, math.inf)), *BOUNDED])
def test_a_number_out_of_its_bounds_is_refused(name, field, wrong):
    """A reference is a number from 0; kept shares of the gain and the difference, and a confirmed share, are from 0 to 1."""
    for value in wrong:
        frame = encode(msgspec.structs.replace(EXCHANGE[name], **{field: value}))
        with pytest.raises(RemoteProtocolError):
            decode("exchange", "peer", frame)


@pytest.mark.parametrize(("lane", "name"), MESSAGES)
def test_a_message_shares_no_memory_with_its_receive_buffer(lane, name):
    frame = bytearray(encode(MESSAGES[lane, name]))
    message = decode(lane, "peer", frame)
    frame[:] = bytes(len(frame))
    frame.clear()  # raises an error while anything refers to it
    assert message == MESSAGES[lane, name]
    assert hash(message) == hash(MESSAGES[lane, name]), "all parts are immutable"


def test_every_kind_of_message_is_among_them():
    kinds = {kind for each in (wire.Control, wire.PairwiseMessage, wire.PulledMessage, wire.State, wire.Crew) for kind in get_args(each)}
    assert {type(message) for message in MESSAGES.values()} == kinds


def test_the_golden_files_name_these_messages_only():
    named = {(lane, name) for lane, messages in GOLDEN.items() for name in messages if "_before_" not in name}
    assert named == MESSAGES.keys()


@pytest.mark.parametrize(("lane", "name"), MESSAGES)
def test_a_cut_frame_is_a_fault_of_the_peer(lane, name):
    frame = encode(MESSAGES[lane, name])
    for end in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode(lane, "peer", frame[:end])


@pytest.mark.parametrize("message", [wire.Busy, wire.NotNow])
def test_every_reason_in_the_schema_is_used(message):
    (field,) = (field for field in msgspec.inspect.type_info(message).fields if field.name == "reason")
    root = Path(__file__).parents[3]
    sources = [*(root / "gossip" / "exchange").glob("*.py"), *(root / "node" / "daemon").glob("*.py")]
    written = "\n".join(source.read_text() for source in sources if source.name != "commands.py")
    assert {reason for reason in field.type.values if f'"{reason}"' not in written} == set()


@pytest.mark.parametrize("lane", MAX_FRAME_BYTES)
@pytest.mark.parametrize(("more", "reason"), [(0, "frame_not_a_message"), (1, "frame_too_long")])
def test_one_byte_beyond_the_limit_of_a_lane_is_too_long(lane, more, reason):
    frame = b"\xc6" + (MAX_FRAME_BYTES[lane] - 5 + more).to_bytes(4, "big") + bytes(MAX_FRAME_BYTES[lane] - 5 + more)
    with pytest.raises(RemoteProtocolError, match=reason):
        decode(lane, "a", frame)


@pytest.mark.parametrize(
    "most",
    [
        wire.Sync((RECORD,) * 56),
        wire.Spread((RECORD,) * 56, (DOUBT,) * 64),
        wire.Probe(1, DIGEST, 1.0, (DOUBT,) * 64),
        wire.Attestations(CONTROL["told"].claims * 64),
    ],
)
def test_frames_longer_than_any_honest_one_are_refused(most):
    """The former bound of 256 records per frame allowed five times the cost of any honest frame."""
    assert decode("control", "a", encode(most)) == most
    for name in most.__struct_fields__:
        items = getattr(most, name)
        if isinstance(items, tuple) and items:
            with pytest.raises(RemoteProtocolError, match=r"frame_not_(a_message|msgpack)"):
                decode("control", "a", encode(msgspec.structs.replace(most, **{name: (*items, items[0])})))


def test_defaults_may_be_missing_on_the_wire():
    frame = bytes.fromhex("94a370726201c408000000000000000000")
    assert decode("control", "a", frame) == wire.Probe(1, bytes(8), 0)
    plain = encode(wire.Farewell(record("a", status="left")))
    assert plain[5] == 0x99, "a record of nine fields, the last of them credential and seat"
    older = plain[:5] + bytes([0x97]) + plain[6:].removesuffix(b"\xc4\x00\x00")
    assert decode("control", "a", older) == wire.Farewell(record("a", status="left"))
