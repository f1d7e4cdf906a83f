"""Format of the file that `starling plan` reads: a model, how it is trained, machines and the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from starling.gossip.bounds import AtLeastOne, Count, Degree, PositiveShare
from starling.gossip.errors import ConfigError
from starling.node.config import toml
from starling.node.config.parts import Section, convert, fields_of, unknown_key

GB = 10**9
MOST_MACHINES = 256
TRY = "`starling examples plan-crowd` is a whole file"

S = TypeVar("S", bound=Section)
Memory = Annotated[float, Meta(gt=0, le=1e6)]
Rate = Annotated[float, Meta(gt=0, le=1e6)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e5)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]


class ModelSection(Section, frozen=True):
    """A transformer that predicts the next token."""

    layers: Annotated[int, Meta(ge=1, le=1000)]
    """Blocks of attention and a feed-forward network of four times the width."""
    hidden: Annotated[int, Meta(ge=1, le=1 << 17)]
    """Width."""
    heads: Annotated[int, Meta(ge=1, le=4096)]
    """Attention heads; counted only where scores are stored."""
    vocab: Annotated[int, Meta(ge=1, le=1 << 24)]
    """Tokens there are. Input and output tables are two."""
    sequence: Annotated[int, Meta(ge=1, le=1 << 20)]
    """Tokens of a sample."""


class TrainSection(Section, frozen=True):
    """Settings of the training."""

    optimizer: Literal["sgd", "momentum", "adamw"] = "adamw"
    """Its moments take 0, 4 or 8 bytes a parameter."""
    moments: Literal["float32", "bfloat16", "int8"] = "float32"
    """In which adamw keeps them, as `numerics.moments`."""
    mix: Literal["pet", "dsgd"] = "pet"
    """pet keeps a flow for each neighbour where the optimiser is not adamw, dsgd keeps none."""
    flows: Literal["float32", "bfloat16"] = "float32"
    """In which they are kept, as `mix.flows`."""
    degree: Degree = 4
    """Neighbours in all rounds, as of `overlay.kind = sticky`."""
    micro_batch: AtLeastOne = 1
    """Samples computed at a time."""
    micro_batches: AtLeastOne = 8
    """Of which one local step is made."""
    local_steps: AtLeastOne = 20
    """Between two exchanges."""
    scores: Literal["fused", "stored", "dropout"] = "fused"
    """What attention keeps of its scores for the backward pass: nothing, one number each, or three where it also drops some out."""
    recompute: bool = False
    """Keep the input of each block only, and compute it again in the backward pass."""
    activation_bits: Literal[4, 8, 16, 32] = 16
    """Of each number that goes from a stage of a crew to the next, and back."""
    exchange_bytes: Annotated[float, Meta(gt=0, le=16)] = 1.27
    """Bytes a parameter that a node sends in an exchange, mean of both roles. The default is that of the default codecs."""
    utilisation: PositiveShare = 0.35
    """Share of `tflops` that training reaches."""


class MachineSection(Section, frozen=True):
    """A machine of the plan."""

    name: Name
    memory_gb: Memory
    """Of the device that trains, in 10⁹ bytes."""
    tflops: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """10¹² operations a second by its maker, of which `train.utilisation` is reached. Without it no step is predicted."""
    up_mbit: Rate | None = None
    """10⁶ bits a second that it can send. Without both rates no exchange is predicted, and no crew has this machine."""
    down_mbit: Rate | None = None
    """10⁶ bits a second that it can receive."""

    @property
    def memory_bytes(self) -> int:
        """Return the memory in bytes."""
        return round(self.memory_gb * GB)


class LinkSection(Section, frozen=True):
    """Measurements between two machines; other pairs get the worse of both machines' values."""

    between: tuple[Name, Name]
    ms: Milliseconds
    """One way."""
    mbit: Rate
    """In each direction."""


class TopLevelKeys(Section, frozen=True):
    """Keys before all sections."""

    ms: Milliseconds = 20.0
    """One way, between machines of which no link is given."""
    reserve: Count = 500_000_000
    """Bytes that a process takes before there is a model: libraries, and what a device's driver keeps."""


class World(TopLevelKeys, frozen=True, kw_only=True):
    """The contents of a plan file."""

    model: ModelSection
    train: TrainSection = TrainSection()
    machine: tuple[MachineSection, ...] = ()
    link: tuple[LinkSection, ...] = ()


def load(path: Path, machines: Path | None = None, links: Path | None = None) -> World:
    """Return a plan file; machines and links may be in separate files, which replace its own.

    Raises ConfigError: unreadable, a wrong key or value, a machine twice, a link to nobody or to itself, too many machines.
    """
    raw: dict[str, Any] = dict(_named(path, toml.read(path), fields_of(World)))
    for more, key in ((machines, "machine"), (links, "link")):
        if more is not None:
            raw[key] = _named(more, toml.read(more), {key: fields_of(World)[key]}).get(key, [])
    try:
        return _checked(
            World(
                model=_whole(raw.pop("model", None), ModelSection, "model"),
                train=_whole(raw.pop("train", {}), TrainSection, "train"),
                machine=_tables(raw.pop("machine", []), MachineSection, "machine"),
                link=_tables(raw.pop("link", []), LinkSection, "link"),
                **msgspec.structs.asdict(convert(raw, TopLevelKeys)),
            )
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _named(path: Path, raw: Mapping[str, Any], fields: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in raw:
        if key not in fields:
            raise ConfigError(f"{path}: {unknown_key('', key, fields)}")
    return raw


def _tables(given: object, kind: type[S], name: str) -> tuple[S, ...]:
    if not isinstance(given, list):
        raise ConfigError(f"{name}: must be tables, each under `[[{name}]]`; {TRY}")
    return tuple(_whole(each, kind, f"{name}[{number}]") for number, each in enumerate(given))


def _whole(table: object, kind: type[S], where: str) -> S:
    """Return a table with all keys that have no default."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a table with keys; {TRY}")
    for field in fields_of(kind).values():
        if field.required and field.name not in table:
            raise ConfigError(f"{where}.{field.name}: is missing; {TRY}")
    return convert(table, kind, f"{where}.")


def _checked(world: World) -> World:
    names = [machine.name for machine in world.machine]
    if len(names) > MOST_MACHINES:
        raise ConfigError(f"machine: must be at most {MOST_MACHINES}, got {len(names)}; plan a part of them")
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(f"machine[{number}].name: must differ from those before, got {name!r}; rename one")
    for number, link in enumerate(world.link):
        for name in link.between:
            if name not in names:
                known = ", ".join(names[:5]) or "none"
                raise ConfigError(f"link[{number}].between: must name two machines, got {name!r}; there are {known}")
        if link.between[0] == link.between[1]:
            raise ConfigError(f"link[{number}].between: must name two machines, got {link.between[0]!r} twice; name another")
    return world


def line(world: World, a: int, b: int) -> tuple[float, float]:
    """Return (seconds one way, bytes per second) from machine a to machine b, indices in `world.machine`, both of whose rates are given."""
    one, other = world.machine[a], world.machine[b]
    assert one.up_mbit is not None
    assert other.down_mbit is not None
    mbit, ms = min(one.up_mbit, other.down_mbit), world.ms
    for link in world.link:
        if set(link.between) == {one.name, other.name}:
            mbit, ms = min(mbit, link.mbit), link.ms
    return ms / 1e3, mbit * 1e6 / 8.0
