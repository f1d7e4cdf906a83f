"""Contents of a peer's frames: messages of every lane, peer ids, signed records, and manifests."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import msgspec

from starling.gossip.errors import ConfigError, RemoteProtocolError
from starling.gossip.wire import frames
from starling.gossip.wire import schema as wire
from starling.node import identity
from starling.node.config import manifest, presets, schema, toml
from starling.node.config.parts import convert
from starling.node.identity import Identity
from tests.fuzz.plain import MSGPACK_LURES, edited
from tests.fuzz.target import Choices, Target, one_line, reason_of

GOLDEN = Path(__file__).parents[2] / "golden"
SWARM = "s" + "a" * 32
STATE = (
    wire.ManifestQuery(SWARM),
    wire.ManifestReply(SWARM, b"manifest"),
    wire.StateQuery(7),
    wire.StateOffer(7, 1, 40, 4096, bytes(32), bytes(32)),
    wire.ChunkQuery(1, 2 * wire.MAX_CHUNK_BYTES),
    wire.DigestsQuery(1, 32),
    wire.Digests(1, 32, bytes(64)),
    wire.Chunk(1, 2 * wire.MAX_CHUNK_BYTES, b"bytes of a model"),
)


def golden_frames(lane: str) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in json.loads((GOLDEN / f"{lane}.json").read_text()).values()]


def _frame(data: bytes) -> bool:
    """Interpret the input. First byte: the lane. From 128 on, the rest gives changes of a valid frame, field by field."""
    setting, frame = (data[0] if data else 0), data[1:]
    lane = wire.LANES[setting % len(wire.LANES)]
    if setting >= 128:
        choices = Choices(frame)
        plain = msgpack.unpackb(choices.of(_valid(lane)))
        for _ in range(1 + choices.below(3)):
            plain = edited(plain, choices)
        frame = msgpack.packb(plain, use_bin_type=True)
    try:
        message = frames.decode(lane, "peer", frame)
    except RemoteProtocolError as error:
        reason_of(error, {"frame_too_long", "frame_not_msgpack", "frame_not_a_message"}, "peer")
        return False
    again = frames.encode(message)
    assert frames.decode(lane, "peer", again) == message, "what was understood can be said"
    return True


@cache
def _valid(lane: str) -> tuple[bytes, ...]:
    return tuple(map(frames.encode, STATE)) if lane == "state" else tuple(golden_frames(lane))


def _frames() -> Iterator[bytes]:
    for number, lane in enumerate(wire.LANES):
        for frame in _valid(lane):
            yield bytes([number]) + frame


FRAMES = Target(_frame, _frames, lambda: (b"\1" + lure for lure in MSGPACK_LURES), spare_bytes=4 << 20, reach=10)


def _record(data: bytes) -> bool:
    """Interpret the input: a peer id as text, a zero byte, and the bytes that it is claimed to have signed."""
    name, _, rest = data.partition(b"\0")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    try:
        assert identity.peer_id_of(identity.public_key_of(text)) == text, "a peer has one id"
        canonical = True
    except ValueError:
        canonical = False
    record = wire.Record(text, SWARM, 1, 2, "alive", ("/ip4/192.0.2.7/tcp/4001",), rest[:64])
    genuine = identity.verify_record(record, SWARM)
    assert genuine <= canonical
    assert not identity.verify_record(msgspec.structs.replace(record, version=3), SWARM)
    assert not identity.verify_record(record, SWARM + "b")
    return genuine


def _records() -> Iterator[bytes]:
    for seed in range(3):
        who = Identity.from_seed(bytes([seed]) * 32)
        record = wire.Record(who.peer_id, SWARM, 1, 2, "alive", ("/ip4/192.0.2.7/tcp/4001",), b"")
        yield who.peer_id.encode() + b"\0" + who.sign_record(record).signature


RECORDS = Target(_record, _records, most_bytes=256, reach=12)


CREATOR = Identity.from_seed(b"creator of swarms to be attacked")
MANIFESTS = (
    schema.Manifest(),
    schema.Manifest(
        name="a swarm of four",
        task=schema.TaskSection(kind="quadratic", nodes=4, dtype="float64", condition=2.0),
        optimizer=schema.OptimizerSection(kind="adamw", lr=1e-3),
        pace=schema.PaceSection(kind="clock"),
        compress=schema.CompressSection(select="top_k", ratio=0.01, request="fp16", response="int8"),
    ),
    schema.Manifest(
        overlay=schema.OverlaySection(kind="ring"),
        mix=schema.MixSection(kind="exact_diffusion"),
        compress=schema.CompressSection(select="full", request="identity", response="identity"),
    ),
    presets.load(schema.Manifest, assignments=["preset=open"]),
)


def _manifest(data: bytes) -> bool:
    """First byte even: bytes as a creator of bad will may have hashed them. Odd: changed on the way. Below 128 they are signed first.

    With 64 in it the rest says how a good manifest is changed, key by key.
    """
    setting, raw = (data[0] if data else 0), data[1:]
    if setting & 64:
        choices = Choices(raw)
        plain: Any = msgpack.unpackb(manifest.to_bytes(choices.of(MANIFESTS)))
        for _ in range(choices.below(4)):
            plain = edited(plain, choices)
        raw = msgpack.packb(plain, use_bin_type=True)
    if setting < 128:
        raw = _signed(raw)
    swarm = manifest.hash_of(raw) if setting % 2 == 0 else manifest.swarm_id(MANIFESTS[0])
    try:
        found = manifest.from_bytes(raw, swarm, "peer")
    except RemoteProtocolError as error:
        reason_of(error, {"manifest_hash", "manifest_not_msgpack", "manifest_signature"}, "peer")
        return False
    except ConfigError as error:
        one_line(error)
        return False
    assert setting % 2 == 0, "other bytes than the id stands for"
    assert manifest.to_bytes(found) == raw
    assert manifest.swarm_id(found) == swarm
    written = toml.parse(toml.to_toml(found))
    assert convert(written, schema.Manifest) == found, "what was agreed on can be written down"
    for warning in manifest.check(found):
        assert warning.splitlines() == [warning]
    return True


def _signed(raw: bytes) -> bytes:
    """Sign the input with the creator's key if it is a table, so that the code after that check is reached too.

    Lists are bounded as in the decoder, whose memory is measured together with this.
    """
    try:
        plain = msgpack.unpackb(raw, raw=False, strict_map_key=True, max_array_len=256, max_ext_len=0)
        unsigned = manifest.ordered({**plain, "founder": CREATOR.peer_id, "signature": ""})
        signature = CREATOR.sign(manifest.SIGN_DOMAIN + msgpack.packb(unsigned, use_bin_type=True)).hex()
        signed: bytes = msgpack.packb({**unsigned, "signature": signature}, use_bin_type=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return raw
    return signed


def _manifests() -> Iterator[bytes]:
    for each in MANIFESTS:
        yield b"\0" + manifest.to_bytes(each)
        yield bytes([64, MANIFESTS.index(each)])
        yield b"\x80" + manifest.to_bytes(manifest.create(each, CREATOR, 1_700_000_000_000))


def _manifest_lures() -> Iterator[bytes]:
    for lure in MSGPACK_LURES:
        yield b"\x80" + lure
        yield b"\0" + lure
    for lure in MSGPACK_LURES[:3]:
        yield b"\x80" + lure + bytes(4000)  # a list may be as long as the bytes it came in


MANIFEST = Target(_manifest, _manifests, _manifest_lures, most_bytes=8192, spare_bytes=4 << 20, reach=95)
