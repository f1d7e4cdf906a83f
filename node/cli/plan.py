"""`starling plan`: compute which machines can train a model, and how fast, before anything is downloaded.

Arithmetic, or with --manifest single operations of a task timed here, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from starling.gossip.errors import ConfigError
from starling.node.cli.common import PATH, console, file_option, json_option, listing, result, table
from starling.node.cli.help import command
from starling.node.cli.progress import slow

if TYPE_CHECKING:
    from starling.node.plan.results import Crew, Plan

HERE = "this machine"


@command(
    ("starling plan my-plan.toml", "begin with a copy of `starling examples plan-crowd`"),
    ("starling plan my-plan.toml --machines home.toml --json", "other machines, for a program"),
    ("starling plan --manifest my-swarm.toml", "a swarm's task on this machine: memory, and the time of a local step"),
)
@click.argument("file", metavar="[FILE]", required=False, type=PATH)
@file_option("--manifest", help="Instead of FILE: a swarm's manifest, whose task is planned for this machine.")
@file_option("--machines", help="Machines, in place of those in FILE.")
@file_option("--links", help="Links between machines, in place of those in FILE.")
@json_option
def plan(file: Path | None, manifest: Path | None, machines: Path | None, links: Path | None, as_json: bool) -> None:
    """Tell which machines can train a model, and how fast.

    FILE describes a transformer and how it is trained; without machines it is planned for this one. Each machine that holds the whole
    model can be a member of a swarm. Machines that are too small can together be one, as stages of a crew. With --manifest
    nothing is trained: each operation of a local step is timed by itself.

    Exit code 0: at least one machine holds it; 1: none.
    """
    import msgspec

    from starling.node.config.memory import available
    from starling.node.plan.decide import plan as decided
    from starling.node.plan.schema import GB, MachineSection, load

    if manifest is not None:
        if file is not None or machines is not None or links is not None:
            raise ConfigError("--manifest: is planned for this machine alone; leave out FILE, --machines and --links")
        found = _of_task(manifest)
        result(found, as_json, _print)
        if not found.members:
            raise click.exceptions.Exit(1)
        return
    if file is None:
        raise ConfigError("plan: needs FILE, or --manifest FILE; `starling examples plan-crowd` is one to begin with")
    world = load(file, machines, links)
    if not world.machine:
        here = MachineSection(name=HERE, memory_gb=available() / GB)
        world = msgspec.structs.replace(world, machine=(here,))
    with slow(f"placing {len(world.machine)} machines"):
        found = decided(world)
    result(found, as_json, _print)
    if not found.members:
        raise click.exceptions.Exit(1)


def _of_task(file: Path) -> Plan:
    """Return the plan of this machine alone, with the measured time of a local step on one thread."""
    import msgspec

    from starling.node.config import memory_estimate, presets, script
    from starling.node.config.schema import Manifest, NodeConfig
    from starling.node.plan.results import Member, Plan, Unused

    manifest, config = presets.load(Manifest, file), NodeConfig(device="cpu")
    if script.trains(manifest):
        raise script.refused("task.kind", "describe the model instead, `starling examples plan-crowd` is a file to begin with")
    dim, free = memory_estimate.parameters(manifest), memory_estimate.here(config)
    if dim is None or ":" in manifest.task.kind:
        raise ConfigError(
            f"task.kind: {manifest.task.kind} is code of somebody's own, which this does not run; "
            f"try `starling task check {manifest.task.kind}`"
        )
    assert free is not None, "of a processor"
    needed = memory_estimate.expected(manifest, config.numerics, dim)
    whole = Plan(
        parameters=dim,
        bytes_per_parameter=memory_estimate.bytes_per_parameter(manifest, config.numerics, dim),
        needed_bytes=needed,
        members=(),
        crews=(),
        unused=(),
        cures=(),
    )
    if why := memory_estimate.objection(manifest, config.numerics, free):
        return msgspec.structs.replace(whole, unused=(Unused(name=HERE, why=why),))
    command = [sys.executable, "-P", "-m", "starling.node.engine.forecast", str(file)]
    with slow("timing the operations of a local step"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(next(reversed(done.stderr.strip().splitlines()), "the process that timed operations ended"))
    member = Member(
        name=HERE,
        needed_bytes=needed,
        memory_bytes=free,
        step_s=msgspec.json.decode(done.stdout)["step_s"],
        exchange_s=None,
        exchange_steps=None,
    )
    return msgspec.structs.replace(whole, members=(member,))


def _print(found: Plan) -> None:
    from starling.node.status.format import size

    out = console()
    out.print(
        listing(
            {
                "parameters": f"{found.parameters:,}",
                "memory": f"{size(found.needed_bytes)} for the whole model, {found.bytes_per_parameter:g} bytes a parameter "
                "and activations",
            }
        )
    )
    if found.members:
        rows = [
            (
                it.name,
                f"{size(it.needed_bytes)} of {size(it.memory_bytes)}",
                _seconds(it.step_s),
                _seconds(it.exchange_s),
                "–" if it.exchange_steps is None else f"{it.exchange_steps:.3g}",
            )
            for it in found.members
        ]
        out.print("\nmembers: each trains the whole model")
        out.print(table(("machine", ">memory", ">local step", ">to send an exchange", ">local steps meanwhile"), rows))
    for crew in found.crews:
        _print_crew(crew)
    if found.unused:
        out.print("\nnot used")
        out.print(table(("machine", "why"), [(it.name, it.why) for it in found.unused]))
    if found.cures:
        out.print(f"\nany of these lets one machine more train the whole model: {', '.join(found.cures)}")


def _print_crew(crew: Crew) -> None:
    from starling.node.status.format import size

    out = console()
    names = " → ".join(stage.name for stage in crew.stages)
    keys = f"--set crew.stages={len(crew.stages)} --set crew.warm_up={crew.warm_up}"
    out.print(f"\ncrew {names}: {_seconds(crew.step_s)} a step; a swarm of such is created with `{keys}`")
    rows = [
        (it.name, f"{it.first}–{it.end - 1}", str(it.held), f"{size(it.needed_bytes)} of {size(it.memory_bytes)}") for it in crew.stages
    ]
    out.print(table(("machine", ">blocks", ">micro-batches held", ">memory"), rows))
    if crew.decides == "lines":
        out.print(f"your lines decide, not your cards: {_seconds(crew.step_s_of_twice_the_rates)} a step at twice the rates")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g} s"
