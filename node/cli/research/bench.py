"""`starling bench`: how fast this machine does what nodes do.

    bench codec    selects, quantises, packs and unpacks, beside a plain copy of the same vector
    bench rules    combines the vectors of peers, some of them bad, beside byzfl

Standard output is a table, or with --json `{"version", "cases": [{"codec", "d", "encode_gb_s", "decode_gb_s", "round_trip_gb_s",
"bytes_per_parameter", "index_bits_over_entropy", "peak_extra_bytes", "memcpy_gb_s"}]}` and `{"version", "cases": [{"rule", "n", "d",
"ours_cpu_s", "peer_cpu_s", "ratio", "max_error"}]}`. Progress goes to standard error if that is a terminal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.common import console, emit, json_option
from starling.node.cli.help import Group

if TYPE_CHECKING:
    from starling.kernels.schema import Case, RuleCase

DIM = 10_000_000
RULES_DIM = 1_000_000
LEAST, LARGEST = 8, 64  # vectors
MOST = 2**32 - 1


@click.group(cls=Group)
def bench() -> None:
    """Measure this machine."""


@bench.command(
    examples=(
        ("starling bench codec --d 1000000", "all codecs that nodes use, beside a plain copy"),
        ("starling bench codec --codec mask:0.1+int4 --json", "one of them, for a program"),
    )
)
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
    from starling.kernels.schema import CODECS
    from starling.node.cli.documents import Codecs
    from starling.node.cli.progress import Steps

    _check(dims, repeat, f"starling bench codec --d {DIM}")
    if threads < 0:
        raise ConfigError(f"--threads: must be >= 0, got {threads}; try `--threads 0` for one per core")
    wanted = [(name, d) for d in dims for name in codecs or CODECS]
    cases: list[Case] = []
    with Steps(len(wanted)) as steps:
        for name, d in wanted:
            steps.begin(f"{name}  d = {d:,}")
            cases.append(_measure(name, d, repeat, device, threads or _cores()))
    if as_json:
        emit(Codecs(cases=tuple(cases)))
    else:
        _table(cases)


@bench.command(
    short_help="Measure robust combining rules beside byzfl's.",
    examples=(
        ("starling bench rules", "all rules beside byzfl's, 16 vectors of a million"),
        ("starling bench rules --rule multi_krum --n 32 --d 100000", ""),
    ),
)
@click.option(
    "--d", "dims", type=int, multiple=True, default=(RULES_DIM,), show_default=True, help="Parameters; repeatable."
)
@click.option(
    "--n", "count", type=int, default=16, show_default=True, help="Vectors, our own included; a fifth of them bad."
)
@click.option("--rule", "rules", multiple=True, metavar="RULE", help="Only these; repeatable.")
@click.option("--repeat", type=int, default=5, show_default=True, help="Repetitions, of which the fastest counts.")
@json_option
def rules(dims: tuple[int, ...], count: int, rules: tuple[str, ...], repeat: int, as_json: bool) -> None:
    """Measure robust combining rules: processor time beside byzfl's, and whether the results are equal.

    Each in a process of its own, on one thread.
    """
    from starling.kernels.schema import RULES
    from starling.node.cli.documents import Rules
    from starling.node.cli.progress import Steps

    _check(dims, repeat, f"starling bench rules --d {RULES_DIM}")
    if not LEAST <= count <= LARGEST:
        raise ConfigError(f"--n: must be in [{LEAST}, {LARGEST}], got {count}; try `--n 16`")
    wanted = [(name, d) for d in dims for name in rules or RULES]
    cases: list[RuleCase] = []
    with Steps(len(wanted)) as steps:
        for name, d in wanted:
            steps.begin(f"{name}  n = {count}  d = {d:,}")
            cases.append(_measure_rule(name, d, count, repeat))
    if as_json:
        emit(Rules(cases=tuple(cases)))
    else:
        _rules_table(cases)


def _check(dims: Sequence[int], repeat: int, example: str) -> None:
    for d in dims:
        if not 1 <= d <= MOST:
            raise ConfigError(f"--d: must be in [1, {MOST}], got {d}; try `{example}`")
    if repeat < 1:
        raise ConfigError(f"--repeat: must be >= 1, got {repeat}; try `--repeat 5`")


def _measure(name: str, d: int, repeat: int, device: str, threads: int) -> Case:
    """A codec.

    Raises:
        ConfigError: there is no such codec or device.
        GossipError: the child ended otherwise.
    """
    import msgspec

    from starling.kernels.schema import Case

    said = _child(
        ["starling.kernels.codec", name, str(d), str(repeat), device, str(threads)], f"codec {name} at d = {d}"
    )
    return msgspec.json.decode(said, type=Case)


def _measure_rule(name: str, d: int, count: int, repeat: int) -> RuleCase:
    """A combining rule.

    Raises:
        ConfigError: there is no such rule, or nothing to compare with.
        GossipError: the child ended otherwise.
    """
    import msgspec

    from starling.kernels.schema import RuleCase

    said = _child(["starling.kernels.rules", name, str(d), str(count), str(repeat)], f"rules {name} at d = {d}")
    return msgspec.json.decode(said, type=RuleCase)


def _child(words: Sequence[str], what: str) -> str:
    """What a module prints, run in a child, as the command line never imports torch.

    Args:
        words: the module and its arguments.
        what: is measured, for the message.

    Raises:
        ConfigError: it refused.
        GossipError: it ended otherwise, for lack of memory most likely.
    """
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise ConfigError(done.stderr.strip())
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        reason = (
            said[-1] if said else f"its process ended with {done.returncode}; it may need more memory than there is"
        )
        raise GossipError(f"bench {what}: {reason}")
    return done.stdout


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _table(cases: Sequence[Case]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("codec", no_wrap=True)
    for heading in (
        "d", "encode GB/s", "decode GB/s", "both GB/s", "bytes/parameter", "index bits/entropy", "extra memory/input", "copy GB/s",
    ):  # fmt: skip
        table.add_column(heading, justify="right", overflow="fold")
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


def _rules_table(cases: Sequence[RuleCase]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("rule", no_wrap=True)
    for heading in ("n", "d", "ours, CPU s", "byzfl, CPU s", "times faster", "largest difference"):
        table.add_column(heading, justify="right")
    for case in cases:
        table.add_row(
            case.rule,
            str(case.n),
            f"{case.d:,}",
            f"{case.ours_cpu_s:.4f}",
            f"{case.peer_cpu_s:.4f}",
            f"{case.ratio:.1f}",
            f"{case.max_error:.1e}",
        )
    console().print(table)
