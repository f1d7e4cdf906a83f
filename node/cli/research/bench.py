"""`starling bench`: how fast this machine does what nodes do.

    bench codec    selects, quantises, packs and unpacks, beside a plain copy of the same vector
    bench rules    combines the vectors of peers, some of them Byzantine, beside byzfl

Standard output is a table, or with --json a `documents.Codecs` or `documents.Rules`. Progress goes to standard error if that is a terminal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.common import console, emit, json_option, table
from starling.node.cli.help import Group

if TYPE_CHECKING:
    from starling.kernels.schema import Case, RuleCase

DIM = 10_000_000
RULES_DIM = 1_000_000
LEAST, LARGEST = 8, 64  # vectors; with fewer Krum has no choice
MOST = 2**32 - 1
MOST_BUSY = 1024  # processes

T = TypeVar("T")

repeat_option = click.option("--repeat", type=int, default=5, help="Repetitions, of which the fastest counts.")


@click.group(cls=Group)
def bench() -> None:
    """Measure this machine."""


@bench.command(
    examples=(
        ("starling bench codec --d 1000000", "all codecs that nodes use, beside a plain copy"),
        ("starling bench codec --codec mask:0.1+int4 --json", "one of them, for a program"),
        ("starling bench codec --beside 2 --repeat 50", "and how much of it is left beside two busy processes"),
    )
)
@click.option("--d", "dims", type=int, multiple=True, default=(DIM,), help="Parameters; repeatable.")
@click.option("--codec", "codecs", multiple=True, metavar="SELECTOR[:RATIO]+QUANTIZER", help="Only these; repeatable.")
@repeat_option
@click.option("--threads", type=int, default=1, help="Of torch; 0: one per processor core. Nodes code on one.")
@click.option("--beside", type=int, default=0, help="Measure again while so many processes are busy.")
@click.option("--device", default="cpu", help="auto, cpu, cuda or mps.")
@json_option
def codec(
    dims: tuple[int, ...], codecs: tuple[str, ...], repeat: int, threads: int, beside: int, device: str, as_json: bool
) -> None:
    """Measure codecs: speed in both directions, size, and memory.

    Each in a process of its own, so that its memory is measured alone. Beside busy processes the median repetition counts.
    """
    from starling.kernels.schema import CODECS, Case
    from starling.node.cli.documents import Codecs

    if threads < 0:
        raise ConfigError(f"--threads: must be >= 0, got {threads}; try `--threads 0` for one per core")
    if not 0 <= beside <= MOST_BUSY:
        raise ConfigError(f"--beside: must be in [0, {MOST_BUSY}], got {beside}; try `--beside 1`")
    cases = _measure("codec", Case, codecs or CODECS, dims, DIM, repeat, repeat, device, threads or _cores(), beside)
    if as_json:
        emit(Codecs(cases=cases))
        return
    columns: tuple[str, ...] = (
        "codec",
        ">d",
        ">encode GB/s",
        ">decode GB/s",
        ">both GB/s",
        ">bytes/parameter",
        ">index bits/entropy",
    )
    rows = map(_codec_row, cases)
    columns += (">extra memory/input", ">copy GB/s", *((f">beside {beside} busy",) if beside else ()))
    console().print(table(columns, rows, fold=True))


@bench.command(
    short_help="Measure robust combining rules beside byzfl's.",
    examples=(
        ("starling bench rules", "all rules beside byzfl's, 16 vectors of a million"),
        ("starling bench rules --rule multi_krum --n 32 --d 100000", ""),
    ),
)
@click.option("--d", "dims", type=int, multiple=True, default=(RULES_DIM,), help="Parameters; repeatable.")
@click.option("--n", "count", type=int, default=16, help="Vectors, our own included; a fifth of them Byzantine.")
@click.option("--rule", "rules", multiple=True, metavar="RULE", help="Only these; repeatable.")
@repeat_option
@json_option
def rules(dims: tuple[int, ...], count: int, rules: tuple[str, ...], repeat: int, as_json: bool) -> None:
    """Measure robust combining rules: processor time beside byzfl's, and whether the results are equal.

    Each in a process of its own, on one thread.
    """
    from starling.kernels.schema import RULES, RuleCase
    from starling.node.cli.documents import Rules

    if not LEAST <= count <= LARGEST:
        raise ConfigError(f"--n: must be in [{LEAST}, {LARGEST}], got {count}; try `--n 16`")
    cases = _measure("rules", RuleCase, rules or RULES, dims, RULES_DIM, repeat, count, repeat)
    if as_json:
        emit(Rules(cases=cases))
        return
    columns = ("rule", ">n", ">d", ">ours, CPU s", ">byzfl, CPU s", ">times faster", ">largest difference")
    console().print(table(columns, map(_rule_row, cases)))


def _measure(
    what: str, kind: type[T], names: Sequence[str], dims: Sequence[int], usual: int, repeat: int, *arguments: object
) -> tuple[T, ...]:
    """Cases of `starling.kernels.{what}`, each in a child process, as the command line never imports torch; `usual` is an example of d."""
    import msgspec

    from starling.node.cli.progress import Display, on_stderr

    for d in dims:
        if not 1 <= d <= MOST:
            raise ConfigError(f"--d: must be in [1, {MOST}], got {d}; try `starling bench {what} --d {usual}`")
    if repeat < 1:
        raise ConfigError(f"--repeat: must be >= 1, got {repeat}; try `--repeat 5`")
    wanted = [(name, d) for d in dims for name in names]
    cases = []
    with on_stderr(Display) as display:
        for number, (name, d) in enumerate(wanted):
            display.show(number / len(wanted), f"{number + 1}/{len(wanted)}  {name}  d = {d:,}")
            words = [sys.executable, "-m", f"starling.kernels.{what}", name, str(d), *map(str, arguments)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            lines = done.stderr.strip().splitlines()
            if done.returncode == 2:
                raise ConfigError(done.stderr.strip())
            if done.returncode:
                died = f"its process ended with {done.returncode}; it may need more memory than there is"
                raise GossipError(f"bench {what} {name} at d = {d}: {lines[-1] if lines else died}")
            cases.append(msgspec.json.decode(done.stdout, type=kind))
    return tuple(cases)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _codec_row(case: Case) -> list[str]:
    extra = None if case.peak_extra_bytes is None else case.peak_extra_bytes / (4 * case.d)
    return [
        case.codec,
        f"{case.d:,}",
        *(f"{speed:.2f}" for speed in (case.encode_gb_s, case.decode_gb_s, case.round_trip_gb_s)),
        f"{case.bytes_per_parameter:.4f}",
        *("–" if figure is None else f"{figure:.3f}" for figure in (case.index_bits_over_entropy, extra)),
        f"{case.memcpy_gb_s:.2f}",
        *(() if case.beside_over_quiet is None else (f"{case.beside_over_quiet:.0%}",)),
    ]


def _rule_row(case: RuleCase) -> list[str]:
    times = (f"{seconds:.4f}" for seconds in (case.ours_cpu_s, case.peer_cpu_s))
    return [case.rule, str(case.n), f"{case.d:,}", *times, f"{case.ratio:.1f}", f"{case.max_error:.1e}"]
