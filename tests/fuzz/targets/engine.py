"""Payloads, weights and whole models from hostile peers at an engine: refused without any change of its state."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from starling.gossip.compress.header import HEADER
from starling.gossip.errors import RemoteProtocolError
from starling.node.config.schema import CompressSection, Manifest, MixSection
from starling.node.engine.compression import exchange_codec
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.tasks.convex import Quadratic
from tests.fuzz.target import Choices, Target, reason_of
from tests.harness.engines import done, manifest, opened
from tests.harness.texts import words

CLIP = 0.5
SETTINGS = (
    ("pet", "clock", CompressSection(select="full")),
    ("pet", "steps", CompressSection(select="top_k", ratio=0.2, request="identity", response="int8")),
    ("pet", "clock", CompressSection(select="drift_top_k", ratio=0.4)),
    ("dsgd", "clock", CompressSection(select="dct_top_k", ratio=0.2, chunk=8, request="identity", response="fp16")),
    ("gradient_tracking", "clock", CompressSection(select="mask", ratio=0.5, response="sign")),
    ("pet", "clock", CompressSection(select="low_rank", rank=1, response="int8")),
    ("push_sum", "clock", CompressSection(select="full", request="identity", response="identity")),
    ("r_fast", "clock", CompressSection(select="full", request="identity", response="identity")),
    ("choco", "steps", CompressSection(select="top_k", ratio=0.2, response="fp8_e4m3")),
    ("moments", "clock", CompressSection(select="full")),
    ("moments", "steps", CompressSection(select="mask", ratio=0.5)),
)
REASONS = {
    *words(
        "bad_length bad_version bad_support bad_indices bad_basis bad_wish wrong_dim unknown_codec not_finite bad_scale bad_code",
        "bad_padding theta_out_of_bounds gain_out_of_bounds share_out_of_bounds clip_norm_exceeded bad_memory too_large state_damaged",
        "state_of_another_model state_unusable",
    )
}
SWAPPING = {"push_sum", "r_fast", "choco"}


class Matrix(nn.Module):
    """A vector stored as a matrix, for low-rank exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(7, 10))

    def forward(self) -> torch.Tensor:
        return self.x.view(-1)


class Bowls(Quadratic):
    def model(self, generator: torch.Generator) -> nn.Module:
        return Matrix()


def _agreed(setting: int) -> Manifest:
    mix, pace, compress = SETTINGS[setting]
    return manifest(
        "tests.fuzz.targets.engine:Bowls",
        nodes=4,
        mix=MixSection(kind=mix, clip_norm=CLIP),
        pace=pace,
        compress=compress,
        params={"nodes": 4, "dim": 70, "dtype": "float32"},
    )


def _started(setting: int) -> Worker:
    """An engine in the middle of its run, ready for exchanges."""
    engine = opened(_agreed(setting), 0, "b")
    if SETTINGS[setting][1] == "steps":
        done(engine, calls.Train(0, 3))
    else:
        done(engine, calls.Free(on=True, round=0))
        for _ in range(3):
            engine.step()
        done(engine, calls.Free(on=False, round=1))
    return engine


_ENGINES: dict[int, Worker] = {}  # unchanged since they were started


def _numbers(engine: Worker) -> list[tuple[str, torch.Tensor]]:
    """Return all numbers that an exchange can change: model, flows, the mixer's state, state of edges, optimiser state."""
    replica = engine.replica
    memory, copies = replica.memory, getattr(replica.memory, "copies", {})
    found = [("x", replica.x), ("total", memory.ledger.total)]
    found += [(f"flow {peer}", flow) for peer, flow in sorted(memory.ledger.flows.items())]
    found += [(f"kept {peer}", each) for peer, each in sorted(copies.items())]
    for name in getattr(replica.state, "__dataclass_fields__", ()):
        found.append((name, getattr(replica.state, name)))
    if replica.remembered is not None:
        found += zip(("mean", "square"), replica.remembered.memory.read(), strict=True)
        found.append(("age", torch.tensor(replica.remembered.memory.age)))
    return found


def _bits(engine: Worker) -> list[tuple[str, bytes]]:
    return [(name, tensor.numpy().tobytes()) for name, tensor in _numbers(engine)]


def _hostile(data: bytes) -> bool:
    """Interpret the input. First byte: manifest; second: target; third: weights of a request, or how often an accepted one is applied."""
    setting, act, detail = (*data[:3], 0, 0, 0)[:3]
    setting %= len(SETTINGS)
    engine, payload = _ENGINES.setdefault(setting, _ENGINES.get(setting) or _started(setting)), data[3:]
    before = _bits(engine)
    match act % 3:
        case 0:
            reply = _ask(engine, payload, Choices(bytes([detail])))
        case 1:
            reply = _answer(engine, payload)
        case _:
            reply = engine.handle(calls.Consider("c", 3, payload))
            if isinstance(reply, calls.Done):
                reply = engine.handle(calls.Agree())
    if isinstance(reply, calls.Refused):
        assert reply.kind == "peer"
        reason_of(RemoteProtocolError("a", reply.reason), REASONS, "a")
        assert _bits(engine) == before, "what is refused changes nothing"
        for peer in ("a", "c"):
            done(engine, calls.Drop(peer, 5, 1))
        return False
    if isinstance(reply, calls.Answered):
        assert _bits(engine) == before, "an answer changes nothing before it is committed"
        _same_header(engine, setting, reply.payload)
        if detail < 128:
            done(engine, calls.Drop("a", 5, 1))
            return True
        done(engine, calls.Commit("a", 5, 1))
    del _ENGINES[setting]
    _mix(engine, setting, 0)
    _check_moved(engine, setting, before, installed=act % 3 == 2)
    for seq in range(2, 2 + detail % 8) if isinstance(reply, calls.Answered) else ():
        again = engine.handle(calls.Answer("a", 5, seq, seq, 0.5, 0.0, payload))
        if isinstance(again, calls.Answered):
            done(engine, calls.Commit("a", 5, seq))
        _mix(engine, setting, seq)
    _check_alive(engine)
    return True


def _mix(engine: Worker, setting: int, round: int) -> None:
    """Apply the round's exchanges in steps pace, so that those of the next round may begin."""
    if SETTINGS[setting][1] == "steps":
        done(engine, calls.Mix(round))
        done(engine, calls.Train(round + 1, 0))


def _check_alive(engine: Worker) -> None:
    """The model is finite, and others can exchange with us."""
    for name, held in _numbers(engine):
        assert bool(torch.isfinite(held).all()), f"{name} is not finite"
    reply = engine.handle(calls.Offer("d", 9, 1, 0, 0.5, 0))
    assert isinstance(reply, calls.Offered), reply


def _ask(engine: Worker, payload: bytes, choices: Choices) -> Any:
    """A request from an initiator; the daemon has checked that theta is that of the link, in [0, 1]."""
    theta, gain = (choices.of((0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0, 1.0, 1e-300)), (0.0, 0.0, 1e9, 5e-324)[choices.below(4)])
    return engine.handle(calls.Answer("a", 5, 1, 0, theta, gain, payload))


def _answer(engine: Worker, payload: bytes) -> Any:
    done(engine, calls.Offer("c", 5, 1, 0, 0.5, 0))
    return engine.handle(calls.Apply("c", 5, 1, payload))


def _same_header(engine: Worker, setting: int, payload: bytes) -> None:
    """Assert that our answer is a payload."""
    codec = exchange_codec(_agreed(setting), engine.replica.form.dtype)
    if payload:
        _, _, code, dim = HEADER.unpack_from(payload)
        assert (code, dim) == (codec.response.code, engine.replica.form.numel())


def _check_moved(engine: Worker, setting: int, before: list[tuple[str, bytes]], *, installed: bool) -> None:
    """Assert that a difference moved the model by no more than was agreed."""
    if SETTINGS[setting][0] in SWAPPING or installed:
        return
    x = torch.frombuffer(bytearray(dict(before)["x"]), dtype=torch.float32)
    moved = float(torch.linalg.vector_norm((engine.replica.x - x).double()))
    assert moved <= 0.5 * CLIP * 1.001, f"one exchange moved the model by {moved}"


@cache
def _valid() -> tuple[bytes, ...]:
    """Honest requests, responses and models, for every manifest."""
    found = []
    for setting in range(len(SETTINGS)):
        asker, engine = (opened(_agreed(setting), shard, node) for shard, node in enumerate("ac"))
        for each in (asker, engine):
            if SETTINGS[setting][1] == "steps":
                done(each, calls.Train(0, 3))
            else:
                done(each, calls.Free(on=True, round=0))
                each.step()
        offered = done(asker, calls.Offer("b", 5, 1, 0, 0.5, 0))
        found.append(bytes([setting, 0, 0]) + offered.payload)
        found.append(bytes([setting, 0, 131]) + offered.payload)
        asked = done(_started(setting), calls.Offer("c", 5, 1, 0, 0.5, 0))
        answered = done(engine, calls.Answer("b", 5, 1, 0, 0.5, 0.0, asked.payload))
        found.append(bytes([setting, 1, 0]) + answered.payload)
        held = done(engine, calls.Snapshot())
        found.append(bytes([setting, 2, 0]) + done(engine, calls.ReadChunk(held.snapshot, 0, held.size)).data)
    return tuple(found)


def _lures() -> Iterator[bytes]:
    for each in _valid():
        yield each[:2] + b"\x07" + each[3:]  # invalid weights
        yield each[:2] + b"\xff" + each[3:14] + b"\xff\xff\x7f\x7f" * 70  # the largest possible numbers
        yield each[:2] + b"\0" + each[3:14] + b"\xff\xff\x7f\xff" * 70
        yield each[:2] + b"\0" + each[3:14] + b"\0\0\xc0\x7f" * 70


ENGINE = Target(_hostile, _valid, _lures, most_bytes=1024, spare_bytes=4 << 20, reach=600)
