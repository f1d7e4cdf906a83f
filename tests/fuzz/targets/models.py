"""Models as blobs, from a disk or from a peer, and the assembly of one from the chunks that peers send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import trio

from starling.gossip import chunks
from starling.gossip.errors import RemoteProtocolError
from starling.gossip.wire import frames
from starling.gossip.wire import schema as wire
from starling.node.daemon.state.collecting import ASKED
from starling.node.daemon.state.model_sync import ModelSync
from starling.node.daemon.state.transfer import REPLY_S, STATE_HEADER_BYTES, WIDEST_SCALAR, Transfer
from starling.node.engine import tensor_file
from starling.node.rpc import calls
from tests.fuzz.plain import JSON_LURES, edited
from tests.fuzz.target import Choices, Target, one_line, prefixed, reason_of
from tests.fuzz.virtual import at_once

EXAMPLES = (
    ({"x": torch.linspace(-1.0, 1.0, 9)}, {"kind": "model", "round": 7, "schema": "ab" * 16}),
    (
        {
            "x": torch.linspace(-1.0, 1.0, 6, dtype=torch.float64).view(2, 3),
            "none": torch.zeros(0, 4),
            "scalar": torch.tensor(1.5),
            "half": torch.ones(3, dtype=torch.float16),
            "b": torch.ones(2, dtype=torch.bfloat16),
            "i": torch.arange(3),
            "flags": torch.tensor([True, False]),
            "c": torch.ones(1, dtype=torch.complex64),
            "f8": torch.ones(2).to(torch.float8_e4m3fn),
        },
        {},
    ),
)


def _blob(data: bytes) -> bool:
    """First byte below 128: a blob. Else how the header of a good one is changed."""
    setting, raw = (data[0] if data else 0), data[1:]
    if setting >= 128:
        raw = _with_header(Choices(raw))
    try:
        tensors, facts = tensor_file.unpack(raw)
    except ValueError as error:
        one_line(error)
        return False
    assert all(isinstance(name, str) for name in (*tensors, *facts))
    assert sum(tensor.nbytes for tensor in tensors.values()) <= len(raw)
    again = tensor_file.unpack(tensor_file.pack(tensors, facts))
    assert again[0].keys() == tensors.keys()
    assert json.dumps(again[1]) == json.dumps(facts)
    return True


def _with_header(choices: Choices) -> bytes:
    good = tensor_file.pack(*choices.of(EXAMPLES))
    length = int.from_bytes(good[:8], "little")
    header: Any = json.loads(good[8 : 8 + length])
    if choices.flag():
        ours = edited(json.loads(header["__metadata__"]["starling"]), choices, binary=False)
        header["__metadata__"] = {"starling": json.dumps(ours)}
    else:
        for _ in range(1 + choices.below(3)):
            header = edited(header, choices, binary=False)
    described = json.dumps(header).encode()
    return len(described).to_bytes(8, "little") + described + good[8 + length :]


def _blobs() -> list[bytes]:
    return prefixed(b"\0", *(tensor_file.pack(tensors, facts) for tensors, facts in EXAMPLES))


def _headed(header: bytes) -> bytes:
    return b"\0" + len(header).to_bytes(8, "little") + header


def _blob_lures() -> list[bytes]:
    ours = json.loads(tensor_file.pack({}, {})[8:].rstrip(b" "))
    shapes = ([0, 2**62, 2**62], [0, 2**63], [0, 2**64 - 1], [2**62, 2**62, 0], [2**32, 2**32], [-1], [0] * 500, [1e9], [])
    headers: list[Any] = [
        {**ours, "x": {"dtype": kind, "shape": shape, "data_offsets": [0, 0]}}
        for shape in shapes
        for kind in ("F32", "F4", "F8_E8M0", "C64", "X")
    ]
    metadata = ('{"format":1,"facts":[],"sha256":""}', '{"format":1e999,"facts":{},"sha256":""}', "[]", "7", '"x"', '{"format":[]}')
    headers += [{"__metadata__": {"starling": inner}} for inner in metadata]
    nested = b'{"__metadata__":{"starling":' + b"[" * 2000, b'{"__metadata__":{"starling":"' + b"[" * 2000 + b'"}}'
    false_lengths = [length.to_bytes(8, "little") + b"{}" for length in (0, 2, 2**31, 2**63, 2**64 - 1)]
    encoded = (json.dumps(header).encode() for header in headers)
    return [*prefixed(b"\0", *false_lengths), *map(_headed, (*encoded, *JSON_LURES, *nested))]


BLOB = Target(_blob, _blobs, _blob_lures, spare_bytes=4 << 20, reach=13)


PARAMETERS = 100
SCHEMA = bytes(range(32))
MOST_STATE_BYTES = WIDEST_SCALAR * PARAMETERS + STATE_HEADER_BYTES
STATES = tuple(bytes([number]) * 1000 for number in range(3))
PEERS = ("a", "b", "c", "d")
FRAME_FAULTS = {"frame_too_long", "frame_not_msgpack", "frame_not_a_message"}


class _Report:
    def __init__(self) -> None:
        self.faults: list[tuple[str, str]] = []

    def event(self, *_: object, **__: object) -> None:
        pass

    def fault(self, peer: str, reason: str) -> None:
        reason_of(
            RemoteProtocolError(peer, reason),
            {"state_of_another_model", "state_digest_mismatch", "state_poisoned", "state_outlier"} | FRAME_FAULTS,
            peer,
        )
        self.faults.append((peer, reason))


class _Peers:
    """A network of four peers that answer each query with anything, any number of times."""

    peer_id = "me"

    def __init__(self, choices: Choices, nursery: trio.Nursery) -> None:
        self._choices, self._nursery = choices, nursery
        self._send, self._inbound = trio.open_memory_channel[Any](1000)

    def inbound(self, _lane: str) -> trio.MemoryReceiveChannel[Any]:
        return self._inbound

    async def send(self, peer: str, lane: str, frame: bytes) -> None:
        await trio.lowlevel.checkpoint()
        for answer in self._answers(frames.decode("state", "me", frame)):
            self._nursery.start_soon(self._deliver, _Item(peer, frames.encode(answer)), self._choices.of((0.0, 0.9, 9.0)))
        if self._choices.below(16) == 15:
            self._nursery.start_soon(self._deliver, _Item(peer, self._choices.piece()), 0.0)

    async def _deliver(self, item: _Item, delay_s: float) -> None:
        await trio.sleep(delay_s)
        with suppress(trio.WouldBlock):
            self._send.send_nowait(item)

    def _answers(self, query: wire.Message) -> Iterator[wire.Message]:
        choices = self._choices
        how = choices.below(8)
        if how == 7:
            return
        match query:
            case wire.StateQuery(nonce=nonce):
                state = choices.of(STATES)
                digest = chunks.root(chunks.digests(state)) if how != 1 else choices.piece()[:32]
                size = len(state) if how != 2 else choices.number()
                schema = SCHEMA if how != 3 else choices.piece()[:32]
                yield wire.StateOffer(nonce if how != 4 else choices.number(), choices.below(3), choices.number(), size, digest, schema)
            case wire.ChunkQuery(snapshot=snapshot, offset=offset):
                state = choices.of(STATES)
                length = wire.MAX_CHUNK_BYTES if how != 1 else choices.below(40)
                part = state[offset : offset + length] if how != 2 else choices.piece()
                wrong = how == 3
                yield wire.Chunk(snapshot + wrong, offset if how != 4 else choices.number(), part if how != 5 else b"")
                if how == 6:
                    yield wire.Chunk(snapshot, offset, part)
            case wire.ManifestQuery(swarm=swarm):
                yield wire.ManifestReply(swarm, choices.piece())


class _Item:
    def __init__(self, peer: str, frame: bytes) -> None:
        self.peer, self.frame = peer, frame


class _Engine:
    """Holds models and finds that they agree, that they do not, or that one is none."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.held: dict[str, calls.Consider] = {}
        self._turn = 0

    async def call(self, request: calls.Request) -> calls.Reply:
        await trio.lowlevel.checkpoint()
        if isinstance(request, calls.Consider):
            assert request.peer in PEERS
            assert request.state in STATES, "only what was offered, as no other bytes have that digest"
            if request.turn != self._turn:
                self.held, self._turn = {}, request.turn
            if self._choices.below(8) == 7:
                return calls.Refused("peer", "state_unusable")
            self.held[request.peer] = request
            assert len(self.held) <= ASKED, "memory for three models at most"
            return calls.Done()
        assert isinstance(request, calls.Agree)
        assert self.held
        peers = tuple(sorted(self.held))
        agreed = peers[: len(peers) - self._choices.below(len(peers) + 1)]
        self.held = {}
        return calls.Agreed(7, agreed, peers[len(agreed) :])


async def _fetch(choices: Choices) -> int | None:
    async with trio.open_nursery() as nursery:
        report = _Report()
        transfer = Transfer(network=_Peers(choices, nursery), report=report, manifest=lambda _swarm: None)
        transfer.expect(calls.Opened(PARAMETERS, SCHEMA, "error", False, "cpu", 9, False, 0))
        await nursery.start(transfer.serve)
        began = trio.current_time()
        joining = ModelSync(transfer=transfer, engine=_Engine(choices), report=report)
        fetched = await joining.fetch(PEERS[: 1 + choices.below(4)], choices.number())
        assert transfer.asking.under_way == 0
        longest_s = 2 * REPLY_S * len(PEERS) * (1 + chunks.count(MOST_STATE_BYTES) + chunks.TRIES * ASKED)
        assert trio.current_time() - began <= longest_s, "a joiner is held up for as many chunks as there are, and no more"
        nursery.cancel_scope.cancel()
    assert fetched in {None, 7}
    return fetched


def _transfer(data: bytes) -> bool:
    """Interpret the input as all answers of four peers to a late joiner."""
    return at_once(_fetch, Choices(data)) is not None


OFFER = bytes([0, 0, 1, 1, 9, 0, 0])
TRANSFER = Target(
    _transfer,
    lambda: [bytes(3) + OFFER + bytes(4)],
    lambda: [bytes(3) + OFFER + bytes([1, 0, 1, 1, 0]) * 1000],  # a byte per second
    most_bytes=6000,
    reach=75,
)
