"""The messages between an engine and its owner's training script, over a socket in the run directory. Torch-free.

    script                engine
    Hello          ->
                   <-     Welcome, with the file that both map (`starling.node.rpc.shared_vectors`), or Refusal
                   <-     Grant: do local steps, from these parameters
    Stepped        ->     their end; the parameters lie in the script's half of the file
                   <-     Measure: evaluate these parameters
    Measured       ->
    Bye            ->

The script waits after Hello, Stepped and Measured; the engine sends Grant, or Measure, when it is time. Either end may close the socket.

Where exchanges overlap local steps, the script goes on after Stepped, and its half of the file stays unchanged until it has seen the
Grant. What exchanges did meanwhile is the difference of the two halves: the script adds that to its parameters, writes them to its half and
says Stepped again. The engine adds the difference of the halves, which is then that of the local steps, to its own.

Shapes: d parameters.
"""

import socket
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from starling.node import platform
from starling.node.rpc.pipe import HEADER

SOCKET_NAME = "script.sock"
VERSION = 1
MAX_BYTES = 64 << 20  # largest size of a message in bytes: names and shapes of a model
Figure = Annotated[float, Meta(ge=-1e300, le=1e300)]


class Message(msgspec.Struct, frozen=True, tag_field="kind"):
    """Base of all messages; adds no field."""


class Decay(msgspec.Struct, frozen=True, array_like=True):
    """Decay of the coordinates from `start` to `stop`, as `starling.gossip.mix.memories.Decay`."""

    start: int
    stop: int
    mean: float
    square: float | None


class Hello(Message, frozen=True, tag="hello"):
    """A script has connected."""

    version: int
    pid: int
    names: tuple[str, ...]  # names of its trainable parameters, in order
    shapes: tuple[tuple[int, ...], ...]
    frozen: str = ""  # number and digest of the values that are not trained, as of `starling.node.engine.fingerprint`
    measures: bool = False  # whether it evaluates on request
    samples: int = 0  # samples of training data; 0: unknown


class Welcome(Message, frozen=True, tag="welcome"):
    """The script takes part. The file to map comes with this message."""

    round: int
    steps: int  # local steps that this node has done
    memories: bool  # whether the optimiser's memory is exchanged
    corrects: bool  # gradients are corrected
    kept: int  # the round after which the script is to have saved its state; -1: never
    rounds: int = 0  # rounds of the run; 0: without end
    metric: str = "loss"  # name of what evaluations give
    ahead: int = 0
    """How many times the steps of a grant a script may do while exchanges run; 0: it waits for each Grant, and begins from that."""


class Refusal(Message, frozen=True, tag="refusal"):
    """The script cannot take part; the socket is closed."""

    reason: str  # one line


class Grant(Message, frozen=True, tag="grant"):
    """Do `steps` local steps, from the parameters in the engine's half of the file."""

    round: int
    steps: int
    rate: float  # rate of the manifest's schedule
    age: int = 0  # age of the memory in it, in local steps; 0: none
    flows: bool = False  # the engine's half holds a correction, which `known` belongs to
    known: tuple[float, ...] = ()
    keep: int = -1  # save the state of the script with the checkpoint of this round; -1: do not
    finished: bool = False  # the last message: no further steps are to be done


class Measure(Message, frozen=True, tag="measure"):
    """Evaluate the parameters in the engine's half of the file."""

    round: int


class Stepped(Message, frozen=True, tag="stepped"):
    """Local steps were done."""

    steps: int
    loss: float | None  # mean; None: unknown
    effective_lr: float  # length of a step along a unit direction, in the long run, at the optimisers' rates
    seconds: float  # that they took
    age: int = 0  # age of the memory in the script's half, in local steps; 0: none
    decays: tuple[Decay, ...] | None = None  # decay rates of that memory; None: unknown optimiser
    known: tuple[float, ...] = ()  # numbers of the correction


class Measured(Message, frozen=True, tag="measured"):
    """The figures of an evaluation; those of the last one if the script evaluates on its own schedule."""

    value: float | None  # the value; None: there is none
    loss: float = float("nan")
    samples: int = 0
    others: dict[str, float] = msgspec.field(default_factory=dict)
    reason: str = ""  # reason for a missing value


class Bye(Message, frozen=True, tag="bye"):
    """The script goes in order."""


FromScript = Hello | Stepped | Measured | Bye
FromEngine = Welcome | Refusal | Grant | Measure

_ENCODER = msgspec.msgpack.Encoder()
_FROM_SCRIPT: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromScript)
_FROM_ENGINE: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromEngine)


class Closed(Exception):
    """The other end of the socket is gone, or does not speak this language."""


def send(sock: socket.socket, message: Message, *files: int) -> None:
    """Write one message, and open files with it. Raises Closed."""
    body = _ENCODER.encode(message)
    try:
        if files:
            platform.send_files(sock, HEADER.pack(len(body)), files)
            sock.sendall(body)
        else:
            sock.sendall(HEADER.pack(len(body)) + body)
    except OSError as error:
        raise Closed from error


def receive_from_script(sock: socket.socket) -> FromScript:
    """Wait for one message of a script. Raises Closed."""
    message: FromScript = _decoded(_FROM_SCRIPT, _body(sock, _exactly(sock, HEADER.size)))
    return message


def receive_from_engine(sock: socket.socket) -> tuple[FromEngine, int | None]:
    """Wait for one message of an engine -> the message, and the descriptor of an open file that came with it. Raises Closed."""
    try:
        first, files = platform.receive_files(sock, HEADER.size, 1)
    except OSError as error:
        raise Closed from error
    if not first:
        raise Closed
    header = first + _exactly(sock, HEADER.size - len(first))
    return _decoded(_FROM_ENGINE, _body(sock, header)), files[0] if files else None


def _body(sock: socket.socket, header: bytes) -> bytes:
    length = HEADER.unpack(header)[0]
    if length > MAX_BYTES:
        raise Closed
    return _exactly(sock, length)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Closed from error


def _exactly(sock: socket.socket, count: int) -> bytes:
    buffer = bytearray(count)
    view = memoryview(buffer)
    while view:
        try:
            received = sock.recv_into(view)
        except OSError as error:
            raise Closed from error
        if not received:
            raise Closed
        view = view[received:]
    return bytes(buffer)
