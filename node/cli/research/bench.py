"""`starling bench`: measure the speed of this machine at a node's work, and the value of the default mix.

    bench codec        selects, quantises, packs and unpacks, beside a plain copy of the same vector
    bench rules        combines the vectors of peers, some of them Byzantine, beside byzfl
    bench link         sends messages from process to process, beside plain and encrypted TCP
    bench loop         does local steps, beside a plain PyTorch loop (`bench_loop`)
    bench overlap      trains on two nodes that exchange, beside a plain loop, and the same nodes alone
    bench never-worse  simulates swarms with the default mix and with plain averages (`bench_never_worse`)

Standard output is a table, or with --json a `documents.Codecs`, `Rules`, `Links`, `Loops`, `Overlaps` or `NeverWorse`. Progress goes to
standard error, but for `loop` and `never-worse` only if that is a terminal.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, TypeVar

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.common import console, cores_there, emit, json_option, table
from starling.node.cli.help import Group
from starling.node.cli.research.bench_loop import loop
from starling.node.cli.research.bench_never_worse import never_worse
from starling.node.cli.signals import ended_by_signals

if TYPE_CHECKING:
    from starling.kernels.schema import Case, LinkCase, OverlapCase, RuleCase

DIM = 10_000_000
RULES_DIM = 1_000_000
LEAST, LARGEST = 8, 64  # number of vectors; with fewer than 8 Krum has no choice
MOST = 2**32 - 1
MOST_BUSY = 1024  # processes
MESSAGES = (64 << 10, 1 << 20, 16 << 20)  # bytes
MOST_MESSAGE = 256 << 20  # the largest frame of an exchange
LAST_PORT = 65535
MBITS = (20.0, 1000.0)
SIZES = {"cnn": 400_000, "gpt": 10_000_000}  # parameters

T = TypeVar("T")

repeat_option = click.option("--repeat", type=int, default=5, help="Repetitions, of which the fastest counts.")


@click.group(cls=Group)
def bench() -> None:
    """Measure this machine."""
    click.get_current_context().with_resource(ended_by_signals())


bench.add_command(loop)
bench.add_command(never_worse)


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
def codec(dims: tuple[int, ...], codecs: tuple[str, ...], repeat: int, threads: int, beside: int, device: str, as_json: bool) -> None:
    """Measure codecs: speed in both directions, size, and memory.

    Each in a process of its own, so that its memory is measured alone. Beside busy processes the median repetition counts.
    """
    from starling.kernels.schema import CODECS, Case
    from starling.node.cli.documents import Codecs

    if threads < 0:
        raise ConfigError(f"--threads: must be >= 0, got {threads}; try `--threads 0` for one per core")
    if not 0 <= beside <= MOST_BUSY:
        raise ConfigError(f"--beside: must be in [0, {MOST_BUSY}], got {beside}; try `--beside 1`")
    cases = measure("codec", Case, codecs or CODECS, dims, DIM, repeat, repeat, device, threads or cores_there(), beside)
    if as_json:
        emit(Codecs(cases=cases))
        return
    columns: tuple[str, ...] = ("codec", ">d", ">encode GB/s", ">decode GB/s", ">both GB/s", ">bytes/parameter", ">index bits/entropy")
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
    cases = measure("rules", RuleCase, rules or RULES, dims, RULES_DIM, repeat, count, repeat)
    if as_json:
        emit(Rules(cases=cases))
        return
    columns = ("rule", ">n", ">d", ">ours, CPU s", ">byzfl, CPU s", ">times faster", ">largest difference")
    console().print(table(columns, map(_rule_row, cases)))


@bench.command(
    short_help="Measure messages between processes or machines.",
    examples=(
        ("starling bench link", "64 KB, 1 MB and 16 MB within this machine, beside TCP and TLS"),
        ("starling bench link --listen 0.0.0.0:4100", "the receiving end, until Ctrl-C"),
        ("starling bench link --connect 192.0.2.7:4100 --seconds 10", "the sending end, on another machine"),
    ),
)
@click.option("--message-bytes", "sizes", type=int, multiple=True, default=MESSAGES, help="Of a message; repeatable.")
@click.option("--transport", "transports", multiple=True, metavar="NAME", help="starling, tcp or tls; repeatable.")
@click.option("--seconds", type=float, default=1.0, help="Sending time of a repetition.")
@click.option("--repeat", type=int, default=3, help="Repetitions, in turn with the other transports; the fastest counts.")
@click.option("--listen", metavar="HOST:PORT", help="Be the receiving end for another machine, which needs all ports.")
@click.option("--connect", metavar="HOST:PORT", help="Send to another machine's `--listen` instead of this one.")
@click.option("--rate", type=float, default=0.0, help="Mbit/s that the link is said to have, noted in the result.")
@json_option
def link(
    sizes: tuple[int, ...],
    transports: tuple[str, ...],
    seconds: float,
    repeat: int,
    listen: str | None,
    connect: str | None,
    rate: float,
    as_json: bool,
) -> None:
    """Measure how fast messages get from one process to another, and what processor time that takes at either end.

    Over a node's connection (starling), trio's TCP stream, and its TLS 1.3 stream. The ends may be on two machines, or in two namespaces.
    """
    from starling.kernels.schema import TRANSPORTS
    from starling.node.cli.documents import Links

    for key, value, low, high in (("--seconds", seconds, 0.05, 3600), ("--repeat", repeat, 1, 1000), ("--rate", rate, 0, 1e6)):
        if not low <= value <= high:
            raise ConfigError(f"{key}: must be in [{low:g}, {high:g}], got {value:g}; try `starling bench link --seconds 1`")
    for size in sizes:
        if not 1 <= size <= MOST_MESSAGE:
            raise ConfigError(f"--message-bytes: must be in [1, {MOST_MESSAGE}], got {size}; try `--message-bytes 1048576`")
    for name in transports:
        if name not in TRANSPORTS:
            raise ConfigError(f"--transport: {name!r} is unknown, choose one of {', '.join(TRANSPORTS)}")
    if listen and connect:
        raise ConfigError("--listen and --connect are the two ends of a link; give one of them here and the other there")
    host, port = _endpoint("--listen", listen) if listen else _endpoint("--connect", connect or "127.0.0.1:0")
    wanted = [(size, name) for _ in range(repeat) for size in sizes for name in transports or TRANSPORTS]
    if connect:
        cases = _links(host, port, wanted, seconds, rate)
    else:
        with _receiver(host, port) as (process, bound):
            if listen:
                click.echo(f"listening; on the other machine: starling bench link --connect {listen.rpartition(':')[0]}:{bound}", err=True)
                process.wait()
                return
            cases = _links(host, bound, wanted, seconds, rate)
    if as_json:
        emit(Links(cases=cases))
        return
    columns = (">message bytes", "transport", ">RTT, ms", ">Mbit/s", ">MB/s", ">sender, CPU s/GiB", ">receiver, CPU s/GiB")
    console().print(table(columns, map(_link_row, cases)))


@bench.command(
    short_help="Measure training beside exchanges.",
    examples=(
        ("starling bench overlap", "a CNN and a GPT of 10 million parameters at 20 Mbit/s and 1 Gbit/s, in both paces"),
        ("starling bench overlap --model gpt --d 1000000 --mbit 20 --pace steps --json", "one case, for a program"),
    ),
)
@click.option("--model", "models", multiple=True, metavar="NAME", help="cnn or gpt; repeatable.")
@click.option("--d", "dim", type=int, help="About how many parameters. Default: 400,000 of cnn, 10,000,000 of gpt.")
@click.option("--mbit", "links", type=float, multiple=True, default=MBITS, help="Line of each node; repeatable.")
@click.option("--pace", "paces", multiple=True, metavar="NAME", help="steps (with pace.overlap) or clock; repeatable.")
@click.option("--driver", "drivers", multiple=True, metavar="NAME", help="task, or script: a loop of one's own; repeatable.")
@click.option("--seconds", type=float, default=20.0, help="Training time of each measurement, at least.")
@click.option("--repeat", type=int, default=1, help="Repetitions, of which the median ratio counts.")
@json_option
def overlap(
    models: tuple[str, ...],
    dim: int | None,
    links: tuple[float, ...],
    paces: tuple[str, ...],
    drivers: tuple[str, ...],
    seconds: float,
    repeat: int,
    as_json: bool,
) -> None:
    """Measure how much of a plain loop's speed, and of its own, a node keeps while it exchanges.

    On half of this machine's cores each: two plain PyTorch loops of the same model, two nodes on loopback with capped lines, each alone in
    its swarm, and then as one swarm. On a busy machine other processes are measured too: the load is part of the result.
    """
    from starling.kernels.schema import DRIVERS, MODELS, PACES, OverlapCase
    from starling.node.cli.documents import Overlaps
    from starling.node.cli.progress import Display, on_stderr

    for key, names, known in (("--model", models, MODELS), ("--pace", paces, PACES), ("--driver", drivers, DRIVERS)):
        for name in names:
            if name not in known:
                raise ConfigError(f"{key}: {name!r} is unknown, choose one of {', '.join(known)}")
    if dim is not None and not 10_000 <= dim <= MOST:
        raise ConfigError(f"--d: must be in [10000, {MOST}], got {dim}; try `starling bench overlap --d 1000000`")
    for key, value, low, high in (
        *(("--mbit", each, 0.1, 1e6) for each in links),
        ("--seconds", seconds, 1.0, 3600.0),
        ("--repeat", repeat, 1, 1000),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{key}: must be in [{low:g}, {high:g}], got {value:g}; try `starling bench overlap --mbit 20`")
    wanted = [*product(models or MODELS, paces or PACES, drivers or DRIVERS, links)]
    cases = []
    with on_stderr(Display) as display:
        for number, (model, pace, driver, mbit) in enumerate(wanted):
            name = f"{model}, {pace}, {driver}, {mbit:g} Mbit/s"
            display.show(number / len(wanted), f"{number + 1}/{len(wanted)}  {name}")
            size = SIZES[model] if dim is None else dim
            cases.append(_child(f"overlap {name}", OverlapCase, "overlap", model, size, mbit, pace, driver, seconds, repeat))
    if as_json:
        emit(Overlaps(cases=tuple(cases)))
        return
    columns = (
        "model",
        ">d",
        ">Mbit/s",
        "pace",
        "driver",
        ">plain, steps/s",
        ">alone, steps/s",
        ">swarm, steps/s",
        ">of plain",
        ">undisturbed",
        ">of alone",
        ">undisturbed",
        ">peak bytes/parameter",
        ">cores each",
        ">load",
    )
    console().print(table(columns, map(_overlap_row, cases), fold=True))


def measure(
    what: str, kind: type[T], names: Sequence[str], dims: Sequence[int], usual: int, repeat: int, *arguments: object
) -> tuple[T, ...]:
    """Measure cases of `starling.kernels.{what}`, each in a child process, as the command line never imports torch; `usual` is an example
    of d.
    """
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
            cases.append(_child(f"{what} {name} at d = {d}", kind, what, name, d, *arguments))
    return tuple(cases)


def _child(case: str, kind: type[T], what: str, *arguments: object) -> T:
    """Return what `python -m starling.kernels.{what}` measures; `case` is named if it fails."""
    import msgspec

    words = [sys.executable, "-m", f"starling.kernels.{what}", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines()
    if done.returncode == 2:
        raise ConfigError(done.stderr.strip())
    if done.returncode:
        died = f"its process ended with {done.returncode}; it may need more memory than there is"
        raise GossipError(f"bench {case}: {lines[-1] if lines else died}")
    return msgspec.json.decode(done.stdout, type=kind)


def _links(host: str, port: int, wanted: Sequence[tuple[int, str]], seconds: float, rate: float) -> tuple[LinkCase, ...]:
    """Return the fastest repetition of each wanted (bytes, transport), in the order of their first one."""
    from starling.kernels.schema import LinkCase
    from starling.node.cli.progress import Display, on_stderr

    best: dict[tuple[int, str], LinkCase] = {}
    with on_stderr(Display) as display:
        for number, (size, name) in enumerate(wanted):
            display.show(number / len(wanted), f"{number + 1}/{len(wanted)}  {name}  messages of {size:,} bytes")
            case = _child(f"link {name}, {size} bytes", LinkCase, "link", "send", host, port, name, size, seconds, rate)
            best[size, name] = max(case, best.get((size, name), case), key=lambda each: each.mb_s)
    return tuple(best.values())


@contextmanager
def _receiver(host: str, port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a receiving process and its port until the block ends."""
    words = [sys.executable, "-m", "starling.kernels.link", "receive", host, str(port)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            bound = process.stdout.readline().strip()
            if not bound:
                raise ConfigError(process.stderr.read().strip())
            yield process, int(bound)
        finally:
            process.kill()  # the process has no state to save


def _endpoint(key: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > LAST_PORT:
        raise ConfigError(f"{key}: must be HOST:PORT or [IPV6]:PORT, got {text!r}; try `starling bench link {key} 127.0.0.1:4100`")
    return host, int(port)


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


def _link_row(case: LinkCase) -> list[str]:
    return [
        f"{case.message_bytes:,}",
        case.transport,
        str(case.rtt_ms),
        f"{case.rate_mbit:g}" if case.rate_mbit else "–",
        f"{case.mb_s:.1f}",
        f"{case.tx_cpu_s_per_gib:.2f}",
        f"{case.rx_cpu_s_per_gib:.2f}",
    ]


def _overlap_row(case: OverlapCase) -> list[str]:
    speeds = (f"{speed:.2f}" for speed in (case.plain_steps_s, case.alone_steps_s, case.swarm_steps_s))
    shares = (case.kept, case.kept_undisturbed, case.ratio, case.undisturbed)
    load = f"{case.load[0]:.1f}–{case.load[1]:.1f}"
    return [
        case.model,
        f"{case.d:,}",
        f"{case.link:g}",
        case.pace,
        case.driver,
        *speeds,
        *("–" if share is None else f"{share:.3f}" for share in shares),
        f"{case.peak_bytes_per_parameter:.1f}",
        str(case.cores or "–"),
        load,
    ]


def _rule_row(case: RuleCase) -> list[str]:
    times = (f"{seconds:.4f}" for seconds in (case.ours_cpu_s, case.peer_cpu_s))
    return [case.rule, str(case.n), f"{case.d:,}", *times, f"{case.ratio:.1f}", f"{case.max_error:.1e}"]
