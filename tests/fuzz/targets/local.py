"""Input from the own machine: both ends of the control socket, the engine's pipe, data files."""

import gzip
import io
import json
import os
import socket
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
from rich.console import Console

from starling.gossip.errors import ConfigError, EngineError, LocalProtocolError
from starling.node.cli import inspect_node
from starling.node.config.schema import Manifest
from starling.node.daemon.events import Changes
from starling.node.daemon.observe import control_server
from starling.node.daemon.observe.control_server import ControlServer
from starling.node.rpc import calls, pipe
from starling.node.status import control
from starling.node.status import format as show
from starling.node.status import snapshot as status
from starling.node.status.control import ControlError
from starling.node.status.snapshot import EngineFigures, StatusSnapshot
from starling.node.tasks import files
from tests.fuzz.plain import JSON_LURES, MSGPACK_LURES, edited
from tests.fuzz.target import Choices, Target, one_line, prefixed
from tests.fuzz.virtual import Script, at_once
from tests.harness.snapshots import bare, snapshot

NOWHERE = Path("/nowhere")


async def _command(op: str, fields: Mapping[str, object]) -> dict[str, object]:
    assert op in control_server.COMMANDS
    if op == "export":
        assert isinstance(fields["path"], str)
    if op == "evaluate":
        raise EngineError("the engine is busy")
    return {}


def _requests(data: bytes) -> bool:
    """Lines, cut into pieces by the first byte. Every answer is one line of JSON; only `watch` never ends."""
    piece = 1 + (data[0] if data else 0)
    stream = Script([data[at : at + piece] for at in range(1, len(data), piece)], most_sent=6)
    server = ControlServer(NOWHERE, bare, _command, Changes())
    at_once(server.answer, stream)
    answers = b"".join(stream.sent).splitlines()
    refused = [answer for answer in answers if not json.loads(answer).get("ok", True)]
    assert len(answers) <= max(data[1:].count(b"\n"), 1) + 6
    return bool(answers) and not refused


def _request_seeds() -> list[bytes]:
    lines = ({"op": op} for op in ("status", "leave", "stop", "watch"))
    seeds = [json.dumps(line).encode() + b"\n" for line in (*lines, {"op": "export", "path": "/tmp/x"})]
    return [*prefixed(b"\xff", *seeds), b"\x02" + b'{"op":"status"}\n' * 3]


def _request_lures() -> list[bytes]:
    lines = (
        b'{"op":["status"]}',
        b'{"op":"export","path":7}',
        b'{"op":"evaluate"}',
        b'{"op":"\\u0000"}',
        b"{}",
        b'{"op":"status","op":1}',
        b"",
        *(lure + b'\n{"op":"status"}' for lure in JSON_LURES),
    )
    return [*prefixed(b"\xff", *(line + b"\n" for line in lines)), b"\xff" + b"x" * 8000]


CONTROL_REQUESTS = Target(_requests, _request_seeds, _request_lures, most_bytes=8192, spare_bytes=2 << 20, reach=50)


def _answer(data: bytes) -> bool:
    """Interpret the input. First byte: the request; the rest is the answer of a node of any version or intent before it closes."""
    setting, answer = (data[0] if data else 0), data[1:]
    node, ours = socket.socketpair()
    with node, ours:
        ours.setblocking(False)
        node.sendall(answer)
        node.shutdown(socket.SHUT_WR)
        with mock.patch.object(control, "connect", return_value=ours):
            try:
                match setting % 3:
                    case 0:
                        control.status(NOWHERE)
                    case 1:
                        control.request(NOWHERE, "evaluate")
                    case _:
                        with control.Watch(NOWHERE) as watch:
                            while watch.poll(1.0) is not None:
                                pass
            except ControlError:
                return False
    return True


def _answers() -> list[bytes]:
    return [*prefixed(b"\0", *map(status.encode, (bare(), snapshot()))), b'\1{"ok":true,"value":0.5}\n']


def _answer_lures() -> list[bytes]:
    lines = (
        b"",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b'{"ok":false}',
        b'{"ok":false,"error":7}',
        b'{"ok":false',
        b'{"ok":false,"error":"no"}',
        b'{"ok":false,"error":"\\ud800"}',
        b"\xff",
        b"7",
        b'"x"',
        *JSON_LURES,
    )
    answers = (status.encode(snapshot()) * 2, *(line + b"\n" for line in lines))
    return [data for setting in (b"\0", b"\1", b"\2") for data in prefixed(setting, *answers)]


CONTROL_ANSWERS = Target(_answer, _answers, _answer_lures, most_bytes=8192, spare_bytes=2 << 20, reach=35)


def _shown(data: bytes) -> bool:
    """Interpret the input. From a first byte of 128 on, the rest gives changes of a valid snapshot, field by field."""
    setting, line = (data[0] if data else 0), data[1:]
    if setting >= 128:
        choices = Choices(line)
        plain = msgspec.to_builtins(choices.of((bare(), snapshot())))
        for _ in range(1 + choices.below(3)):
            plain = edited(plain, choices, binary=False)
        line = json.dumps(plain).encode()
    try:
        found = status.decode(line)
    except ValueError:
        return False
    assert status.decode(status.encode(found)) == found
    _show(found)
    return True


def _show(found: StatusSnapshot) -> None:
    out = Console(file=io.StringIO(), width=80)
    out.print(inspect_node.status_table(found))
    for width in (80, 200):
        out.print(inspect_node.peer_table(found.peers[:8], width))
    inspect_node.print_first(out, found, None, Path("node"))
    text = out.file.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text), "no control sequence reaches the terminal"
    for event in found.events[:8]:
        assert show.clean(event.text).isprintable()
    for point in (*found.loss_curve[:8], *found.value_curve[:8]):
        show.figure(point.value)
        show.age(point.time_s)


def _snapshots() -> list[bytes]:
    odd = snapshot(name="\x1b[2J", problem="a\nb", peers=(), value=None, parameters=None)
    return prefixed(b"\0", *map(status.encode, (bare(), snapshot(), odd)))


def _snapshot_lures() -> Iterator[bytes]:
    good = status.encode(bare())
    for lure in JSON_LURES:
        yield b"\0" + lure
        yield b"\0" + good.replace(b'"uptime_s":0.0', b'"uptime_s":' + lure)
        for key in (b"later", b"bytes_sent"):
            yield b"\0" + good.replace(b'"version":1', b'"version":1,"%s":%s' % (key, lure))


SNAPSHOTS = Target(_shown, _snapshots, _snapshot_lures, most_bytes=8192, spare_bytes=4 << 20, reach=40)


def _piped(data: bytes) -> bool:
    """First byte: whether a request or a reply. Whole frames are read as the child reads them, from a socket."""
    setting, body = (data[0] if data else 0), data[1:]
    decode = pipe.decode_request if setting % 2 == 0 else pipe.decode_reply
    try:
        call_id, message = decode(body)
        assert decode(pipe.encode(call_id, message)[pipe.HEADER.size :]) == (call_id, message) or "nan" in repr(message)
        accepted = True
    except LocalProtocolError:
        accepted = False
    if len(body) >= pipe.HEADER.size:
        with suppress(LocalProtocolError):
            assert pipe.body_bytes(body[: pipe.HEADER.size]) <= pipe.MAX_FRAME_BYTES
    return accepted


def _piped_seeds() -> Iterator[bytes]:
    requests = (
        calls.Open(Manifest(seed=7), "", 3, "cpu", 1, "/run/checkpoint", "peer"),
        calls.Train(4, 20),
        calls.Free(on=True, round=5),
        calls.Offer("peer", 1, 2, 3, 0.5, 4096),
        calls.Answer("peer", 1, 2, 3, 0.5, 0.25, b"\0\xff"),
        calls.Apply("peer", 1, 2, b"p"),
        calls.Commit("peer", 1, 2),
        calls.Revoke("peer"),
        calls.Consider("peer", 9, b"state"),
        calls.Limit(3),
        calls.Stop(),
    )
    replies = (
        calls.Opened(10, b"schema", "error", False, "cpu", 9, False, 0),
        calls.Trained(1, EngineFigures(20, 0.5), 0.1),
        calls.Answered(b"p"),
        calls.SnapshotInfo(1, 2, b"d", 3, b"s", b"c"),
        calls.ChunkRead(b"x"),
        calls.Done(),
        calls.Refused("peer", "bad_code"),
        pipe.Failed("no"),
    )
    for number, messages in enumerate((requests, replies)):
        for message in messages:
            yield bytes([number]) + pipe.encode(7, message)[pipe.HEADER.size :]


def _piped_lures() -> list[bytes]:
    later = (b"\0", b"\0\x92\x01\x93\xa4stop", b"\1\x92\x01\x93\xa4done")  # fields of a later version
    lures = [data for prefix in later for data in prefixed(prefix, *MSGPACK_LURES)]
    return [*lures, b"\0\x92\xcf" + b"\xff" * 8 + b"\x91\xa4stop", b"\1\x92\x01\x95\xa7trained\x01\xa1\xff\x01\x02"]


PIPE = Target(_piped, _piped_seeds, _piped_lures, spare_bytes=2 << 20, reach=12)


def _data_file(data: bytes) -> bool:
    """First byte: which format, and for .npz whether the rest is the whole file or one array in it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        return _read(Path(folder), data[0] if data else 0, data[1:])


def _read(folder: Path, setting: int, content: bytes) -> bool:
    form = setting % 4
    path = folder / ("data.idx", "data.idx.gz", "data.npz", "data.npz")[form]
    if form == 3:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("x.npy", content)
        content = buffer.getvalue()
    path.write_bytes(content)
    try:
        if form < 2:
            found = files.read_idx(path, 1 + setting // 4 % 3)
            assert found.dtype == np.uint8
        else:
            names = files.names_in_npz(path)
            arrays = files.read_npz(path, ["x"], ["y"])
            assert {"x"} <= arrays.keys() <= {"x", "y"}
            assert arrays.keys() <= names
            assert not any(array.dtype.hasobject for array in arrays.values())
    except ConfigError as error:
        one_line(error)
        return False
    return True


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _data_files() -> Iterator[bytes]:
    for rank in (1, 3):
        shape = (2, 3, 4)[:rank]
        raw = struct.pack(f">HBB{rank}I", 0, files.IDX_UINT8, rank, *shape) + bytes(range(int(np.prod(shape))))
        yield bytes([4 * (rank - 1)]) + raw
        yield bytes([4 * (rank - 1) + 1]) + gzip.compress(raw, mtime=0)
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, x=np.arange(6.0).reshape(2, 3), y=np.array(["a", "bc"]))
        yield b"\2" + buffer.getvalue()
    numbers, fortran = np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((2, 2), ">i4"))
    for array in (numbers, fortran, np.array(["a", "bc"]), np.array([b"x"])):
        yield b"\3" + _npy(array)


def _data_file_lures() -> Iterator[bytes]:
    yield b"\0" + struct.pack(">HBBI", 0, 8, 1, 2**32 - 1)
    yield b"\x08" + struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 2**31)
    yield b"\1" + bytes.fromhex("1f8b0800000000000003ffff")
    good = _npy(np.arange(6, dtype="<f8"))
    for kind in (b"<f3", b"<i3", b"|O8", b">f9", b"<U0", b"<c8", b"|S0", b"<u1", b"<i16", b"<f16", b"<U999"):
        yield b"\3" + good.replace(b"<f8", kind)
    for shape in (b"(6,)", b"(-6,)", b"()", b"(0, 9)", b"(2, 3)", b"(1, 1, 6)", b"(99999999999999999999,)"):
        yield b"\3" + good.replace(b"(6,)", shape)
    yield b"\3\x93NUMPY\x02\0" + struct.pack("<I", 2**32 - 1)


DATA_FILES = Target(_data_file, _data_files, _data_file_lures, most_bytes=2048, spare_bytes=4 << 20, reach=38)
