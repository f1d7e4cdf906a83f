"""`starling bench codec`: how fast this machine selects, quantises, packs and unpacks, beside a plain copy of the same vector.

Standard output is a table, or with --json `{"cases": [{"codec", "d", "encode_gb_s", "decode_gb_s", "round_trip_gb_s",
"bytes_per_parameter", "index_bits_over_entropy", "peak_extra_bytes", "memcpy_gb_s"}]}`. Progress goes to standard error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gossip.errors import ConfigError, GossipError
from node.cli.output import console, json_option

if TYPE_CHECKING:
    from node.bench.schema import Case

DIM = 10_000_000
MOST = 2**32 - 1


@click.group()
def bench() -> None:
    """Measure this machine."""


@bench.command()
@click.option("--d", "dims", type=int, multiple=True, default=(DIM,), show_default=True, help="Parameters; repeatable.")
@click.option("--codec", "codecs", multiple=True, metavar="SELECTOR[:RATIO]+QUANTIZER", help="Only these; repeatable.")
@click.option("--repeat", type=int, default=5, show_default=True, help="Repetitions, of which the fastest counts.")
@click.option("--threads", type=int, default=0, help="0, the default: one per processor core.")
@click.option("--device", default="cpu", show_default=True, help="auto, cpu, cuda or mps.")
@json_option
def codec(
    dims: tuple[int, ...], codecs: tuple[str, ...], repeat: int, threads: int, device: str, as_json: bool
) -> None:
    """Measure codecs: speed in both directions, size, and memory.

    Each in a process of its own, so that its memory can be told from the others'.
    """
    import msgspec

    from node.bench.schema import CODECS, Cases

    for d in dims:
        if not 1 <= d <= MOST:
            raise ConfigError(f"--d: must be in [1, {MOST}], got {d}; try `starling bench codec --d {DIM}`")
    if repeat < 1:
        raise ConfigError(f"--repeat: must be >= 1, got {repeat}; try `--repeat 5`")
    if threads < 0:
        raise ConfigError(f"--threads: must be >= 0, got {threads}; try `--threads 0` for one per core")
    wanted = [(name, d) for d in dims for name in codecs or CODECS]
    cases: list[Case] = []
    for number, (name, d) in enumerate(wanted, start=1):
        click.echo(f"{number}/{len(wanted)}  {name}  d = {d:,}", err=True)
        cases.append(_measure(name, d, repeat, device, threads or _cores()))
    if as_json:
        click.echo(msgspec.json.encode(Cases(tuple(cases))))
    else:
        _table(cases)


def _measure(name: str, d: int, repeat: int, device: str, threads: int) -> Case:
    """In a child, as the command line never imports torch.

    Raises:
        ConfigError: there is no such codec or device.
        GossipError: the child ended otherwise, for lack of memory most likely.
    """
    import msgspec

    from node.bench.schema import Case

    words = [sys.executable, "-m", "node.bench.codec", name, str(d), str(repeat), device, str(threads)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise ConfigError(done.stderr.strip())
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        reason = (
            said[-1] if said else f"its process ended with {done.returncode}; it may need more memory than there is"
        )
        raise GossipError(f"bench codec {name} at d = {d}: {reason}")
    return msgspec.json.decode(done.stdout, type=Case)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _table(cases: Sequence[Case]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("codec")
    for heading in (
        "d", "encode GB/s", "decode GB/s", "both GB/s", "bytes/parameter", "index bits/entropy", "extra memory/input", "copy GB/s",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for case in cases:
        extra = None if case.peak_extra_bytes is None else case.peak_extra_bytes / (4 * case.d)
        table.add_row(
            case.codec,
            f"{case.d:,}",
            *(f"{speed:.2f}" for speed in (case.encode_gb_s, case.decode_gb_s, case.round_trip_gb_s)),
            f"{case.bytes_per_parameter:.4f}",
            *("–" if figure is None else f"{figure:.3f}" for figure in (case.index_bits_over_entropy, extra)),
            f"{case.memcpy_gb_s:.2f}",
        )
    console().print(table)
