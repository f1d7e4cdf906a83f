"""Memory of an engine process in each phase, beyond that of the same engine with a tiny model.

`python -m starling.kernels.memory NAME D DEGREE`: an engine process as the daemon starts it, which exchanges whole vectors with `DEGREE`
peers. A second process is all of them in turn, so that theirs are not counted. Peaks are the kernel's (VmHWM), so this needs Linux.

Shapes: d parameters.
"""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, cast, get_args

from starling.gossip.compress.budget import SHARE
from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.wire.schema import MAX_CHUNK_BYTES
from starling.kernels.child import answer
from starling.kernels.schema import MemoryCase
from starling.node.config import large
from starling.node.config.schema import (
    CompressSection,
    Manifest,
    MixSection,
    NumericsSection,
    OptimizerSection,
    PaceSection,
    PartitionSection,
    TaskSection,
)
from starling.node.rpc import calls, pipe

ROUNDS = 2  # rounds with whole vectors; with masks, enough rounds to visit every coordinate, so that all flows exist
STEPS = 4  # local steps of a round
LEAST = 50_000  # d of the engine with which all others are compared
Layout = Literal["default", "whole", "mask", "lean+mask", "leanest+mask", "flows", "flows+whole", "flows+mask"]
"""A setting whose memory is measured."""
SETTINGS: Mapping[Layout, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = MappingProxyType(
    {
        "default": ("adamw", {}, {}),
        "whole": ("adamw", {"select": "full"}, {}),
        "mask": ("adamw", {"select": "mask", "ratio": 0.1}, {}),
        "lean+mask": ("adamw", {"select": "mask", "ratio": 0.1}, {"moments": "bfloat16"}),
        "leanest+mask": ("adamw", {"select": "mask", "ratio": 0.1}, {"moments": "int8"}),
        "flows": ("sgd", {}, {}),
        "flows+whole": ("sgd", {"select": "full"}, {}),
        "flows+mask": ("sgd", {"select": "mask", "ratio": 0.1}, {}),
    }
)
"""Layout -> optimiser, keys of compress, and of numerics."""


class Answers(Protocol):
    """An engine in this or another process."""

    def done(self, call: calls.Request) -> calls.Reply:
        """Return the reply to a call. Raises GossipError: it was refused."""


class Engine:
    """An engine process, called by hand."""

    def __init__(self, manifest: Manifest, label: str, checkpoint: str, numerics: NumericsSection) -> None:
        parent_end, child_end = socket.socketpair()
        words = [sys.executable, "-m", "starling.node.engine.process", str(child_end.fileno())]
        self._process = subprocess.Popen(words, pass_fds=[child_end.fileno()])
        child_end.close()
        self._socket, self._calls = parent_end, 0
        self.opened = cast(
            "calls.Opened", self.done(calls.Open(manifest, "", int(label == "peer"), "cpu", 1, checkpoint, label, numerics=numerics))
        )

    def done(self, call: calls.Request) -> calls.Reply:
        """Return the reply to a call. Raises GossipError: it was refused, or the process ended."""
        self._calls += 1
        self._socket.sendall(pipe.encode(self._calls, call))
        _, reply = pipe.decode_reply(self._read(pipe.body_bytes(self._read(pipe.HEADER.size))))
        if isinstance(reply, calls.Refused):
            raise (ConfigError if reply.kind == "config" else GossipError)(reply.reason)
        if isinstance(reply, pipe.Failed):
            raise GossipError(reply.message)
        return reply

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not (part := self._socket.recv(min(count - len(data), 1 << 20))):
                raise GossipError("the engine's process ended; it may need more memory than there is")
            data += part
        return bytes(data)

    def resident(self) -> tuple[int, int]:
        """Return the resident bytes now, and their peak since the last `forget`."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return tuple(int(fields[key].split()[0]) << 10 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]

    def forget(self) -> None:
        """Reset the peak."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@contextmanager
def engines(agreed: Manifest, folder: Path, numerics: NumericsSection) -> Iterator[tuple[Engine, Engine]]:
    """Yield the measured engine, and that of its peers."""
    hub = Engine(agreed, "hub", str(folder / "hub.checkpoint"), numerics)
    peer = Engine(agreed, "peer", "", numerics)
    try:
        yield hub, peer
    finally:
        hub.close()
        peer.close()


def manifest(name: Layout, d: int, folder: Path) -> Manifest:
    """Return the manifest of a byte GPT with about d parameters, 12·layers·width², and negligible activations."""
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    for number, letter in enumerate(b"ab"):  # gradients differ, so that flows and optimiser states do
        (texts / f"{number}.txt").write_bytes(bytes((letter,)) * 4000)
    layers = 2 if d < 1_000_000 else 6
    width = max(16, round((d / (12 * layers)) ** 0.5 / 16) * 16)
    task: dict[str, Any] = {"kind": "text", "width": width, "layers": layers, "heads": 4, "context": 16}
    task |= {"path": str(texts), "batch_size": 4}
    optimizer, compress, _ = SETTINGS[name]
    agreed = Manifest(
        seed=5,
        task=TaskSection(**task),
        partition=PartitionSection(kind="by_file", shards=2),
        optimizer=OptimizerSection(kind=optimizer, lr=1e-6),
        mix=MixSection(kind="pet"),
        compress=CompressSection(**compress),
        pace=PaceSection(kind="steps", local_steps=STEPS, rounds=50),
    )
    return large.sealed(agreed)


def phases(name: Layout, d: int, degree: int) -> tuple[int, dict[str, int], int]:
    """Return the true d, the peak of each phase in bytes, and what is resident between rounds."""
    peaks: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as made:
        agreed, folder = manifest(name, d, Path(made)), Path(made)
        numerics = NumericsSection(**SETTINGS[name][2])
        with engines(agreed, folder, numerics) as (hub, peer):

            def note(phase: str) -> None:
                peaks[phase] = max(peaks.get(phase, 0), hub.resident()[1])
                hub.forget()

            note("open")
            for step in range(rounds(name)):
                hub.done(calls.Train(step, STEPS))
                note("train")
                peer.done(calls.Train(step, STEPS))
                for number in range(degree):
                    exchange(hub, peer, f"p{number}", step, leads=number % 2 == 0)
                note("exchange")
                hub.done(calls.Mix(step))
                note("mix")
                peer.done(calls.Mix(step))
            resident = hub.resident()[0]
            hub.done(calls.Evaluate(rounds(name)))
            note("evaluate")
            hub.done(calls.Save())
            note("save")
            model, at = served(hub, Path(made) / "model"), rounds(name)
            note("serve")
            hub.done(calls.Train(at, STEPS))
            hub.done(calls.Mix(at))
            note("again")
            parameters = hub.opened.parameters
        again = Engine(agreed, "hub", str(folder / "hub.checkpoint"), numerics)
        late = Engine(agreed, "late", str(folder / "late.checkpoint"), numerics)
        try:
            again.done(calls.Train(at, STEPS))
            peaks["resume"] = again.resident()[1]
            for number in range(3):
                late.done(calls.Consider(f"p{number}", at, b"", 1, str(model)))
            late.done(calls.Agree())
            late.done(calls.Train(at, STEPS))
            peaks["join"] = late.resident()[1]
        finally:
            again.close()
            late.close()
        return parameters, peaks, resident


def rounds(name: Layout) -> int:
    """Return the rounds after which every coordinate was exchanged on every edge."""
    compress = SETTINGS[name][1]
    share = SHARE if not compress else 1 / compress["parts"] if "parts" in compress else compress.get("ratio", 1.0)
    return max(ROUNDS, round(1.0 / share))


def served(engine: Engine, file: Path) -> Path:
    """Return a file with the model that an engine offers to late joiners."""
    snapshot = cast("calls.SnapshotInfo", engine.done(calls.Snapshot()))
    with file.open("wb") as into:
        for at in range(0, snapshot.size, MAX_CHUNK_BYTES):
            into.write(cast("calls.ChunkRead", engine.done(calls.ReadChunk(snapshot.snapshot, at, MAX_CHUNK_BYTES))).data)
    return file


def exchange(hub: Answers, peer: Answers, name: str, step: int, *, leads: bool) -> None:
    """Do one transaction; the peers' engine is called `name`, and the hub "hub of name"."""
    one, other, to_one, to_other = (hub, peer, f"hub of {name}", name) if leads else (peer, hub, name, f"hub of {name}")
    offered = cast("calls.Offered", one.done(calls.Offer(to_other, 0, step + 1, step, 0.2, 0)))
    answer = calls.Answer(to_one, 0, step + 1, step, 0.2, offered.gain, offered.payload, borne=offered.borne, reference=offered.reference)
    reply = cast("calls.Answered", other.done(answer))
    one.done(calls.Apply(to_other, 0, step + 1, reply.payload, reply.borne, reply.share))
    other.done(calls.Commit(to_one, 0, step + 1))


def measure(name: str, d: int, degree: int) -> MemoryCase:
    """Measure the bytes per parameter of a layout. Raises ConfigError: it is unknown, or the machine reports no memory figures."""
    if name not in get_args(Layout):
        raise ConfigError(f"NAME: {name!r} is unknown, choose one of {', '.join(get_args(Layout))}")
    layout = cast("Layout", name)
    if not Path("/proc/self/clear_refs").exists():
        raise ConfigError("kernels.memory: needs Linux's peak memory in /proc; run it on Linux")
    _, least, held_least = phases(layout, LEAST, degree)
    true, peaks, resident = phases(layout, d, degree)
    each = {phase: round((peaks[phase] - least[phase]) / true, 2) for phase in peaks}
    return MemoryCase(
        layout=name,
        d=true,
        degree=degree,
        held=round((resident - held_least) / true, 2),
        peak=max(each.values()),
        phases=each,
        torch_bytes=held_least,
    )


if __name__ == "__main__":
    sys.exit(answer(lambda: measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
