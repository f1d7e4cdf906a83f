"""`starling overlay show|compare|sampling`: what an overlay looks like, what it costs, how fast it mixes, how many bad ones are met.

Arithmetic only, no swarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from starling.gossip.errors import ConfigError
from starling.node.cli import completion
from starling.node.cli.common import console, emit_plain, json_option
from starling.node.cli.help import Group
from starling.node.cli.progress import Slow

if TYPE_CHECKING:
    from starling.gossip.overlay.api import Overlay

MOST_MEMBERS = 10_000
MOST_EDGES = 1 << 22
"""Weights of a round that are held in memory at once."""
DENSE = 512
"""Members up to which whole matrices are multiplied."""
SMALL = 128
"""Members up to which that is done some thousand times."""
WATCHED = 60
"""Rounds of the consensus error in a plot, and of a comparison unless said otherwise."""
OPTIONAL = MappingProxyType({"expected": "expected_contraction", "χ1, χ2": "chi_rounds"})
"""Lines of `show` that are left out where there is no such measure."""
REACHED = 1e-9
"""Consensus error at which a comparison takes the average as reached."""
RISK = 0.01
"""Of a run in which more bad ones are met than is said."""
COUNTED = 0.4
"""Bad members, as a share, up to which it is searched how many must be asked: near a half it is all of them, after minutes."""
LOWEST = 1e-15
"""Where the scale of a comparison ends."""

n_option = click.option("-n", "n", type=click.IntRange(2, MOST_MEMBERS), default=33, show_default=True, help="Members.")
k_option = click.option(
    "--k", type=int, default=1, show_default=True, help="Most peers a round, for kinds that take it."
)
seed_option = click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of chance.")


@click.group(cls=Group)
def overlay() -> None:
    """Draw, measure and compare overlays."""


@overlay.command(
    examples=(
        ("starling overlay show base_k -n 33 --k 2", ""),
        ("starling overlay show ring -n 16 --set weights=lazy --png ring.png", "a plot as well"),
    )
)
@click.argument("kind", shell_complete=completion.overlays)
@n_option
@k_option
@seed_option
@click.option("--round", type=click.IntRange(0), default=0, show_default=True, help="Which round to draw.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="weights, average_every, eta, …")
@click.option("--png", metavar="FILE", type=click.Path(path_type=Path), help="Plot the graph and its consensus error.")
@json_option
def show(
    kind: str, n: int, k: int, seed: int, round: int, assignments: tuple[str, ...], png: Path | None, as_json: bool
) -> None:
    """Measure one overlay and draw one of its rounds.

    Keys of --set: weights, average_every, overlap, factor (erdos_renyi), basis (equi_static), eta (equi_dyn).
    """
    parameters = _parameters(assignments)
    with Slow(f"measuring {kind} of {n} members"):
        part = _overlay(kind, n, k, seed, parameters)
        facts = _facts(part, n, round)
    if png is not None:
        from starling.gossip.overlay import measure
        from starling.node.cli.research.plotting import graph_and_error

        with Slow(f"drawing {png}"):
            error = measure.walk(part, measure.start(seed, n), WATCHED).consensus_error.tolist()
            graph_and_error(png, f"{kind}, n = {n}, round {round}", n, [(i, j) for i, j, _ in facts["edges"]], error)
        click.echo(f"wrote {png}", err=True)
    if as_json:
        emit_plain({"kind": kind, "n": n, "k": k, "seed": seed, "round": round, "parameters": parameters} | facts)
        return
    _print_facts(" ".join((kind, *assignments)), n, round, facts)


@overlay.command(
    short_help="Mix the same numbers over several overlays.",
    examples=(
        ("starling overlay compare -n 33 --kinds ring,one_peer_exponential,base_k", ""),
        ("starling overlay compare -n 256 --kinds sticky,torus --k 4 --rounds 500 --json", ""),
    ),
)
@n_option
@click.option("--kinds", required=True, metavar="KIND,KIND,…", help="Which overlays, by the names of overlay.kind.")
@k_option
@click.option("--rounds", type=click.IntRange(1, 100_000), default=WATCHED, show_default=True, help="How long to mix.")
@seed_option
@json_option
def compare(n: int, kinds: str, k: int, rounds: int, seed: int, as_json: bool) -> None:
    """Mix the same random numbers over several overlays: how far from their mean they are, and at what cost.

    The consensus error is the mean squared deviation, 1 at the start. Messages are vectors sent by a node, on average.
    """
    from starling.gossip.overlay import measure

    names = list(dict.fromkeys(name.strip() for name in kinds.split(",") if name.strip()))
    if not names:
        raise ConfigError("--kinds: must name at least one, got none; try `--kinds ring,one_peer_exponential,base_k`")
    with Slow(f"mixing numbers of {n} members over {rounds} rounds"):
        parts = {name: _overlay(name, n, k, seed, {}) for name in names}
        walks = {name: measure.walk(part, measure.start(seed, n), rounds) for name, part in parts.items()}
    table = {
        name: {
            "rounds": list(range(rounds + 1)),
            "consensus_error": walk.consensus_error.tolist(),
            "messages_per_node": walk.messages_per_node.tolist(),
        }
        for name, walk in walks.items()
    }
    if as_json:
        emit_plain({"n": n, "kinds": table})
        return
    _print_comparison(n, rounds, table)


@overlay.command(
    short_help="Count the bad ones that a node meets by chance.",
    examples=(("starling overlay sampling -n 64 --bad 13 --k 6", "a fifth of 64 members is bad"),),
)
@n_option
@click.option("--bad", type=click.IntRange(0), required=True, metavar="F", help="How many of the members are bad.")
@click.option(
    "--k", type=click.IntRange(1, 32), default=6, show_default=True, help="Peers that a node asks in a round."
)
@click.option("--rounds", type=click.IntRange(1), default=1000, show_default=True, help="Length of the run.")
@json_option
def sampling(n: int, bad: int, k: int, rounds: int, as_json: bool) -> None:
    """How many bad ones a node meets that asks k others at random: what robust.b has to be, and how often it is not enough.

    Chances are exact. The largest number of a run is that of any good node in any round, with 99 %.
    """
    from starling.robust.sampling import b_hat, least_s, overflow

    for name, value in (("--bad", bad), ("--k", k)):
        if value >= n:
            raise ConfigError(
                f"{name}: must be < n = {n}, got {value}; try `{name} {n // 5 if name == '--bad' else n - 1}`"
            )
    with Slow("counting"):
        chances = [overflow(n, bad, k, b) for b in range(k)]
        most = b_hat(n, bad, k, n - bad, rounds, RISK)
        enough = least_s(n, bad, n - bad, rounds, RISK) if bad <= COUNTED * n else None
    if as_json:
        told = {
            "n": n,
            "bad": bad,
            "k": k,
            "rounds": rounds,
            "more_than_b": chances,
            "most": most,
            "never_half": enough,
        }
        emit_plain(told)
        return
    _print_sampling(n, bad, k, rounds, chances, most, enough)


# --- what is asked for ------------------------------------------------------------------------------------------


def _overlay(kind: str, n: int, k: int, seed: int, parameters: dict[str, Any]) -> Overlay:
    """The overlay, if it can be had for n.

    Raises:
        ConfigError: it cannot, or has more edges than fit.
    """
    from starling.gossip.overlay.catalogue import check
    from starling.gossip.overlay.catalogue import overlay as build

    part = build(kind, k, seed, **parameters)
    check(part, n)
    edges = n * len(part.row(0, n, 0))
    if edges > MOST_EDGES:
        raise ConfigError(
            f"-n: {kind} has some {edges:,} edges at n = {n}, more than {MOST_EDGES:,}; try `-n {n // 4}`"
        )
    return part


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text]


PARAMETERS: Mapping[str, tuple[Callable[[str], Any], str]] = MappingProxyType(
    {
        "weights": (str, "a name"),
        "average_every": (int, "an integer"),
        "overlap": (_switch, "true or false"),
        "factor": (float, "a number"),
        "basis": (int, "an integer"),
        "eta": (float, "a number"),
    }
)


def _parameters(assignments: tuple[str, ...]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for assignment in assignments:
        key, _, text = assignment.partition("=")
        if key not in PARAMETERS:
            raise ConfigError(f"--set: must be one of {', '.join(PARAMETERS)}, got {key!r}; try `--set weights=lazy`")
        convert, wanted = PARAMETERS[key]
        try:
            parameters[key] = convert(text)
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"--set {key}: must be {wanted}, got {text!r}; see `starling overlay show --help`"
            ) from error
    return parameters


# --- what is found ----------------------------------------------------------------------------------------------


def _facts(part: Overlay, n: int, round: int) -> dict[str, Any]:
    """All measures, as JSON has them; None where there is none, or n is too large for it."""
    from starling.gossip.overlay import measure

    period = part.period(n)
    horizon = min(period or 64, 256 if n <= SMALL else 64)
    here = measure.rows(part, n, round)
    dense = n <= DENSE
    exact = measure.finite_time(part, n, horizon) if dense else None
    phases = measure.phases(part, n, exact) if exact and exact <= 64 and n <= SMALL else None
    chi = _chi(part, n, horizon) if dense else None
    return {
        "symmetric": part.symmetric,
        "period": period,
        "measured_rounds": horizon,
        "degree": _degree(measure.degree(part, n, 1, round)),
        "degree_of_all_rounds": _degree(measure.degree(part, n, horizon)),
        "messages_per_node_and_round": measure.messages(part, n, horizon),
        "spectral_gap": measure.gap(part, n, horizon) if dense else None,
        "finite_time_rounds": exact,
        "left_out_of_phase": max(phases) if phases else None,
        "left_after_measured_rounds": measure.left(part, n, horizon) if dense else None,
        "expected_contraction": measure.contraction(part, n, 10 * n) if period is None and n <= SMALL else None,
        "chi_rounds": chi,
        "edges": list(zip(here.to.tolist(), here.source.tolist(), here.weight.tolist(), strict=True)),
    }


def _chi(part: Overlay, n: int, count: int) -> tuple[float, float] | None:
    """χ1 and χ2 in rounds, from how often pairs meet in `count` rounds; None where not all are connected."""
    from starling.gossip.overlay import measure
    from starling.gossip.overlay.measure import chi, symmetrised

    met = [each.dense() for each in measure.sequence(part, n, count)]
    try:
        return chi(2.0 * symmetrised(sum(met[1:], met[0])) / count)
    except ValueError:
        return None


def _degree(degree: Any) -> dict[str, float]:
    return {"largest": degree.largest, "mean": degree.mean}


def _print_facts(name: str, n: int, round: int, facts: Mapping[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from starling.node.cli.research import drawing

    horizon, period = facts["measured_rounds"], facts["period"]
    over = "its period" if period == horizon else f"{horizon} rounds"
    heard = [f"{j} ({weight:.3g})" for i, j, weight in facts["edges"] if i == 0]
    rows = {
        "overlay": f"{name}, {n} members",
        "symmetric": "yes" if facts["symmetric"] else "no: edges have a direction",
        "period": "none, every round is drawn anew" if period is None else _rounds(period),
        "degree": f"{_spread(facts['degree'])} in round {round}, {_spread(facts['degree_of_all_rounds'])} over {over}",
        "messages": f"{facts['messages_per_node_and_round']:.3g} sent by a node a round",
        "spectral gap": _figure(facts["spectral_gap"]) + (f" a round, over {over}" if horizon > 1 else ""),
        "finite time": _rounds(facts["finite_time_rounds"]) if facts["finite_time_rounds"] else "–",
        "exactness": _exactness(facts, over, dense=n <= DENSE),
        "expected": f"{_figure(facts['expected_contraction'])} of a squared disagreement is left by a round, at worst",
        "χ1, χ2": f"{_figures(facts['chi_rounds'])} rounds; times pace.local_steps they are mix.chi1 and mix.chi2 of a2cid2",
        "rank 0 hears": _cut(", ".join(heard), 60) or "nobody",
    }
    rows = {what: text for what, text in rows.items() if facts[OPTIONAL.get(what, "edges")] is not None}
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for what, text in rows.items():
        table.add_row(Text(what), Text(text))
    out = console()
    out.print(table)
    if n > drawing.MOST_DRAWN:
        out.print(
            f"\nno drawing: {n} members do not fit, the most is {drawing.MOST_DRAWN}; try --png FILE", style="dim"
        )
        return
    out.print(Text(f"\nround {round}\n" + drawing.chords(n, [(i, j) for i, j, _ in facts["edges"]])), soft_wrap=True)


def _print_sampling(n: int, bad: int, k: int, rounds: int, chances: list[float], most: int, enough: int | None) -> None:
    from rich.table import Table

    table = Table(box=None)
    table.add_column("robust.b", justify="right")
    table.add_column("more than that in", justify="right")
    for b, chance in enumerate(chances):
        table.add_row(str(b), f"{100 * chance:.3g} %")
    out = console()
    out.print(f"{k} of {n - 1} others asked, {bad} of {n} members bad\n")
    out.print(table)
    out.print(f"\nat worst {most} of {k} in {rounds} rounds, at any good node, with {100 * (1 - RISK):g} %")
    out.print(
        "never half of them bad: " + (f"ask {enough}" if enough else f"– (counted up to {COUNTED:.0%} bad members)")
    )


def _figures(values: tuple[float, float] | None) -> str:
    return ", ".join(map(_figure, values or (None, None)))


def _exactness(facts: Mapping[str, Any], over: str, *, dense: bool) -> str:
    if not dense:
        return f"– (measured up to {DENSE} members)"
    if not facts["finite_time_rounds"]:
        return f"none; {facts['left_after_measured_rounds']:.2g} of a disagreement is left after {over}, at worst"
    missed = facts["left_out_of_phase"]
    if missed is None:
        return "the average, begun in round 0"
    if missed < REACHED:
        return "the average, begun in any round"
    return f"the average, begun in round 0; begun elsewhere up to {missed:.2g} of a disagreement is left"


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"


def _spread(degree: Mapping[str, float]) -> str:
    largest, mean = degree["largest"], degree["mean"]
    return f"{largest}" if largest == mean else f"{largest} at most, {mean:.3g} on average"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 12) + 0.0:.4g}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: text.rindex(",", 0, length)] + ", …"


def _print_comparison(n: int, rounds: int, table: Mapping[str, Mapping[str, list[float]]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from starling.node.cli.research import drawing

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    shown.add_column("", no_wrap=True)
    shown.add_column(f"n = {n}", no_wrap=True)
    at = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000) if t <= rounds][-4:]
    for t in at:
        shown.add_column(f"round {t}", justify="right", no_wrap=True)
    shown.add_column(f"to {REACHED:.0e}", justify="right", no_wrap=True)
    shown.add_column("messages", justify="right", no_wrap=True)
    letters = drawing.letters(table)
    for name, row in table.items():
        errors = row["consensus_error"]
        reached = next((t for t, error in enumerate(errors) if error <= REACHED), None)
        shown.add_row(
            letters.get(name, ""),
            Text(name),
            *(f"{errors[t]:.1e}" for t in at),
            "–" if reached is None else str(reached),
            "–" if reached is None else f"{row['messages_per_node'][reached]:.3g}",
        )
    out = console()
    out.print(shown)
    out.print(
        Text(
            "\nconsensus error by round\n" + drawing.curves({k: v["consensus_error"] for k, v in table.items()}, LOWEST)
        ),
        soft_wrap=True,
    )
