"""The plan: machines that train the whole model alone, in crews, or not at all, and what limits their speed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from starling.node.plan import memory
from starling.node.plan.crews import Crews, block_costs
from starling.node.plan.results import Member, Plan, Unused
from starling.node.plan.schema import GB, MachineSection, TrainSection, World

MOST_IN_CREWS = 24  # machines among which crews are sought


def plan(world: World) -> Plan:
    """Members first: they wait for no line. Of the rest crews, with as few machines as hold the model."""
    whole = _needed(world, world.train)
    members, rest = list[Member](), list[int]()
    for number, machine in enumerate(world.machine):
        if whole <= machine.memory_bytes:
            members.append(_member(world, machine, whole))
        else:
            rest.append(number)
    able = [number for number in rest if None not in (*_rates(world.machine[number]), world.machine[number].tflops)]
    crews = Crews(world).among(able[:MOST_IN_CREWS])
    taken = {stage.name for crew in crews for stage in crew.stages}
    unused = tuple(_unused(world, number, able) for number in rest if world.machine[number].name not in taken)
    return Plan(
        parameters=memory.parameters(world.model),
        bytes_per_parameter=memory.bytes_per_parameter(world.train),
        needed_bytes=whole,
        members=tuple(members),
        crews=crews,
        unused=unused,
        cures=tuple(_cures(world, rest)),
    )


def _needed(world: World, train: TrainSection) -> int:
    return memory.needed(world.model, train, 0, world.model.layers, 1, world.reserve)


def _rates(machine: MachineSection) -> tuple[float | None, float | None]:
    return machine.up_mbit, machine.down_mbit


def _member(world: World, machine: MachineSection, needed: int) -> Member:
    train, step_s, exchange_s = world.train, None, None
    if machine.tflops is not None:
        costs = block_costs(world)
        step_s = train.micro_batches * sum(costs) / (machine.tflops * 1e12 * train.utilisation)
    if machine.up_mbit is not None:
        exchange_s = 8.0 * train.exchange_bytes * memory.parameters(world.model) / (machine.up_mbit * 1e6)
    steps = exchange_s / step_s if step_s and exchange_s is not None else None
    return Member(
        name=machine.name,
        needed_bytes=needed,
        memory_bytes=machine.memory_bytes,
        step_s=step_s,
        exchange_s=exchange_s,
        exchange_steps=steps,
    )


def _unused(world: World, number: int, able: list[int]) -> Unused:
    machine = world.machine[number]
    if number not in able:
        why = "too small for the whole model; for a crew its tflops, up_mbit and down_mbit must be given"
    elif number in able[MOST_IN_CREWS:]:
        why = f"too small for the whole model, and crews are sought among {MOST_IN_CREWS} machines at most"
    else:
        why = "too small for the whole model, and no crew needs or holds it"
    return Unused(name=machine.name, why=why)


def _cures(world: World, rest: list[int]) -> Iterator[str]:
    if not rest:
        return
    most, train = max(world.machine[number].memory_bytes for number in rest), world.train
    tried: list[dict[str, object]] = [{"micro_batch": 1}, {"recompute": True}]
    flows = train.mix == "pet" and train.optimizer != "adamw"
    tried += [{"degree": degree} for degree in range(train.degree - 1, 0, -1)] if flows else []
    tried += [{"moments": "bfloat16"}, {"moments": "int8"}] if train.optimizer == "adamw" else []
    tried += [{"flows": "bfloat16"}, {"mix": "dsgd"}] if flows else []
    tried += [{"optimizer": "momentum"}, {"optimizer": "sgd"}]
    seen = set[str]()
    for change in tried:
        ((key, value),) = change.items()
        changed = msgspec.structs.replace(train, **change)
        if changed != train and key not in seen and _needed(world, changed) <= most:
            seen.add(key)
            shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
            yield f"train.{key} = {shown}"
    yield f"machine.memory_gb = {_needed(world, train) / GB:.3g}"
