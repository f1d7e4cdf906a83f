"""`starling overlay show|compare|sampling`: show an overlay's edges, cost, speed of mixing, and number of Byzantine neighbors.

Arithmetic only, no swarm.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import click

from starling.gossip.errors import ConfigError
from starling.node.cli import completion
from starling.node.cli.common import console, file_option, force_option, json_option, listing, refuse_existing, result, table
from starling.node.cli.help import Group
from starling.node.cli.progress import slow

if TYPE_CHECKING:
    from starling.gossip.overlay.api import Overlay
    from starling.node.cli.documents import OverlayComparison, OverlayFacts, OverlaySampling

MOST_MEMBERS = 10_000
MOST_EDGES = 1 << 22  # most weights of a round that are held in memory at once
DENSE = 512  # most members for which whole matrices are multiplied
SMALL = 128  # most members for which that is done some thousand times
WATCHED = 60  # rounds in a plot of the consensus error, and in a comparison without --rounds
REACHED = 1e-9  # consensus error that counts as reached in a comparison
RISK = 0.01  # probability that a run exceeds the largest number of Byzantine peers stated for it
COUNTED = 0.4  # largest share of Byzantine members for `never_half`: near a half the search takes minutes
LOWEST = 1e-15  # lower end of the scale of a comparison

n_option = click.option("-n", "n", type=click.IntRange(2, MOST_MEMBERS), default=33, help="Members.")
k_option = click.option("--k", type=int, default=1, help="Most peers a round, for kinds that take it.")
seed_option = click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Of the random numbers.")


@click.group(cls=Group)
def overlay() -> None:
    """Draw, measure and compare overlays."""


@overlay.command(
    examples=(
        ("starling overlay show base_k -n 33 --k 2", ""),
        ("starling overlay show ring -n 16 --set weights=lazy --png ring.png", "a plot as well"),
    )
)
@click.argument("kind", shell_complete=completion.names("starling.gossip.overlay.catalogue:OVERLAYS"))
@n_option
@k_option
@seed_option
@click.option("--round", type=click.IntRange(0), default=0, help="Which round to draw.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A key of the section overlay.")
@file_option("--png", help="Plot the graph and its consensus error.")
@force_option
@json_option
def show(
    kind: str, n: int, k: int, seed: int, round: int, assignments: tuple[str, ...], png: Path | None, force: bool, as_json: bool
) -> None:
    """Measure one overlay and draw one of its rounds.

    Keys of --set are those of the manifest's section overlay: weights, average_every, overlap, and the kind's own.
    """
    from starling.node.cli.documents import OverlayFacts

    refuse_existing("--png", png, force=force)
    parameters = _parameters(kind, assignments)
    k = parameters.pop("k", k)
    with slow(f"measuring {kind} of {n} members"):
        part = _overlay(kind, n, k, seed, parameters)
        measures = _measures(part, n, round)
        facts = OverlayFacts(kind=kind, n=n, k=k, seed=seed, round=round, parameters=parameters, **measures)
    if png is not None:
        from starling.gossip.overlay import measure
        from starling.node.cli.research.drawing import graph_and_error

        with slow(f"drawing {png}"):
            error = measure.walk(part, measure.start(seed, n), WATCHED).consensus_error.tolist()
            graph_and_error(png, f"{kind}, n = {n}, round {round}", n, [(i, j) for i, j, _ in facts.edges], error)
        click.echo(f"wrote {png}", err=True)
    result(facts, as_json, partial(_print_facts, " ".join((kind, *assignments))))


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
@click.option("--rounds", type=click.IntRange(1, 100_000), default=WATCHED, help="How long to mix.")
@seed_option
@json_option
def compare(n: int, kinds: str, k: int, rounds: int, seed: int, as_json: bool) -> None:
    """Mix the same random numbers over several overlays: how far from their mean they are, and at what cost.

    The consensus error is the mean squared deviation, 1 at the start. Messages are vectors sent by a node, on average.
    """
    from starling.gossip.overlay import measure
    from starling.node.cli.documents import OverlayComparison, Walk

    names = list(dict.fromkeys(name.strip() for name in kinds.split(",") if name.strip()))
    if not names:
        raise ConfigError("--kinds: must name at least one, got none; try `--kinds ring,one_peer_exponential,base_k`")
    walks = {}
    with slow(f"mixing numbers of {n} members over {rounds} rounds"):
        parts = {name: _overlay(name, n, k, seed, {}) for name in names}
        for name, part in parts.items():
            walk = measure.walk(part, measure.start(seed, n), rounds)
            error, messages = walk.consensus_error.tolist(), walk.messages_per_node.tolist()
            walks[name] = Walk(rounds=tuple(range(rounds + 1)), consensus_error=error, messages_per_node=messages)
    result(OverlayComparison(n=n, kinds=walks), as_json, partial(_print_comparison, rounds))


@overlay.command(
    short_help="Count the Byzantine peers that a node samples.",
    examples=(("starling overlay sampling -n 64 --bad 13 --k 6", "a fifth of 64 members is Byzantine"),),
)
@n_option
@click.option("--bad", type=click.IntRange(0), required=True, metavar="F", help="How many of the members are Byzantine.")
@click.option("--k", type=click.IntRange(1, 32), default=6, help="Peers that a node pulls from in a round.")
@click.option("--rounds", type=click.IntRange(1), default=1000, help="Length of the run.")
@json_option
def sampling(n: int, bad: int, k: int, rounds: int, as_json: bool) -> None:
    """How many Byzantine peers a node meets that samples k others: what robust.f has to be, and how often it is exceeded.

    Probabilities are exact. The largest number of a run is that of any honest node in any round, with 99 %.
    """
    from starling.node.cli.documents import OverlaySampling
    from starling.robust.sampling import b_hat, least_s, overflow

    for name, value in (("--bad", bad), ("--k", k)):
        if value >= n:
            raise ConfigError(f"{name}: must be < n = {n}, got {value}; try `{name} {n // 5 if name == '--bad' else n - 1}`")
    with slow("counting"):
        found = OverlaySampling(
            n=n,
            bad=bad,
            k=k,
            rounds=rounds,
            more_than_b=tuple(overflow(n, bad, k, b) for b in range(k)),
            most=b_hat(n, bad, k, n - bad, rounds, RISK),
            never_half=least_s(n, bad, n - bad, rounds, RISK) if bad <= COUNTED * n else None,
        )
    result(found, as_json, _print_sampling)


def _overlay(kind: str, n: int, k: int, seed: int, parameters: dict[str, Any]) -> Overlay:
    """Return the overlay of n members. Raises ConfigError: there is none, or it has too many edges."""
    from starling.gossip.overlay.catalogue import check
    from starling.gossip.overlay.catalogue import overlay as build

    part = build(kind, k, seed, **parameters)
    check(part, n)
    edges = n * len(part.row(0, n, 0))
    if edges > MOST_EDGES:
        raise ConfigError(f"-n: {kind} has some {edges:,} edges at n = {n}, more than {MOST_EDGES:,}; try `-n {n // 4}`")
    return part


def _parameters(kind: str, assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of the overlay section that `--set` gives, with their values."""
    from starling.node.config import toml
    from starling.node.config.schema import Manifest, OverlaySection

    set_to = [f"overlay.{assignment}" for assignment in assignments]
    section = toml.apply_set(Manifest(overlay=OverlaySection(kind=kind)), set_to).overlay
    return {key: getattr(section, key) for key in (each.partition("=")[0].strip() for each in assignments)}


def _measures(part: Overlay, n: int, round: int) -> dict[str, Any]:
    """Return fields of `OverlayFacts`; None where there is no such measure, or n is too large for it."""
    from starling.gossip.overlay import measure
    from starling.node.cli.documents import Degree

    period = part.period(n)
    horizon = min(period or 64, 256 if n <= SMALL else 64)
    here = measure.rows(part, n, round)
    now, all_rounds = measure.degree(part, n, 1, round), measure.degree(part, n, horizon)
    dense = n <= DENSE
    exact = measure.finite_time(part, n, horizon) if dense else None
    phases = measure.phases(part, n, exact) if exact and exact <= 64 and n <= SMALL else None
    return {
        "symmetric": part.symmetric,
        "period": period,
        "measured_rounds": horizon,
        "degree": Degree(largest=now.largest, mean=now.mean),
        "degree_of_all_rounds": Degree(largest=all_rounds.largest, mean=all_rounds.mean),
        "messages_per_node_and_round": measure.messages(part, n, horizon),
        "spectral_gap": measure.gap(part, n, horizon) if dense else None,
        "finite_time_rounds": exact,
        "left_out_of_phase": max(phases) if phases else None,
        "left_after_measured_rounds": measure.left(part, n, horizon) if dense else None,
        "expected_contraction": measure.contraction(part, n, 10 * n) if period is None and n <= SMALL else None,
        "chi_rounds": _chi(part, n, horizon) if dense else None,
        "edges": tuple(zip(here.to.tolist(), here.source.tolist(), here.weight.tolist(), strict=True)),
    }


def _chi(part: Overlay, n: int, count: int) -> tuple[float, float] | None:
    """Return χ1 and χ2 in rounds, from how often pairs meet in `count` rounds; None where not all are connected."""
    from starling.gossip.overlay import measure

    met = [each.dense() for each in measure.sequence(part, n, count)]
    try:
        return measure.chi(2.0 * measure.symmetrised(sum(met[1:], met[0])) / count)
    except ValueError:
        return None


def _print_facts(name: str, facts: OverlayFacts) -> None:
    from rich.text import Text

    from starling.node.cli.research import drawing

    n, horizon, period = facts.n, facts.measured_rounds, facts.period
    over = "its period" if period == horizon else f"{horizon} rounds"
    sources = ", ".join(f"{j} ({weight:.3g})" for i, j, weight in facts.edges if i == 0)
    if len(sources) > 60:
        sources = sources[: sources.rindex(",", 0, 60)] + ", …"
    rows = {
        "overlay": f"{name}, {n} members",
        "symmetric": "yes" if facts.symmetric else "no: edges have a direction",
        "period": "none, every round is drawn anew" if period is None else _rounds(period),
        "degree": f"{_degree(facts.degree)} in round {facts.round}, {_degree(facts.degree_of_all_rounds)} over {over}",
        "messages": f"{facts.messages_per_node_and_round:.3g} sent by a node a round",
        "spectral gap": _figure(facts.spectral_gap) + (f" a round, over {over}" if horizon > 1 else ""),
        "finite time": _rounds(facts.finite_time_rounds) if facts.finite_time_rounds else "–",
        "exactness": _exactness(facts, over),
    }
    if facts.expected_contraction is not None:
        left = _figure(facts.expected_contraction)
        rows["expected"] = f"{left} of a squared disagreement is left by a round, at worst"
    if facts.chi_rounds is not None:
        figures = ", ".join(map(_figure, facts.chi_rounds))
        rows["χ1, χ2"] = f"{figures} rounds; times pace.local_steps they are mix.chi1 and mix.chi2 of a2cid2"
    rows["rank 0 receives from"] = sources or "none"
    out = console()
    out.print(listing(rows))
    if n > drawing.MOST_DRAWN:
        out.print(f"\nno drawing: {n} members do not fit, the most is {drawing.MOST_DRAWN}; try --png FILE", style="dim")
        return
    picture = drawing.chords(n, [(i, j) for i, j, _ in facts.edges])
    out.print(Text(f"\nround {facts.round}\n{picture}"), soft_wrap=True)


def _exactness(facts: OverlayFacts, over: str) -> str:
    missed = facts.left_out_of_phase
    if facts.n > DENSE:
        return f"– (measured up to {DENSE} members)"
    if not facts.finite_time_rounds:
        return f"none; {facts.left_after_measured_rounds:.2g} of a disagreement is left after {over}, at worst"
    if missed is None:
        return "the average, begun in round 0"
    if missed < REACHED:
        return "the average, begun in any round"
    return f"the average, begun in round 0; begun elsewhere up to {missed:.2g} of a disagreement is left"


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"


def _degree(degree: Any) -> str:
    same = degree.largest == degree.mean
    return f"{degree.largest}" if same else f"{degree.largest} at most, {degree.mean:.3g} on average"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 12) + 0.0:.4g}"


def _print_comparison(rounds: int, compared: OverlayComparison) -> None:
    from rich.text import Text

    from starling.node.cli.research import drawing

    at = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000) if t <= rounds][-4:]
    letters = dict(zip(compared.kinds, ascii_lowercase, strict=False))  # no more kinds than letters are drawn
    rows = []
    for name, walk in compared.kinds.items():
        errors = walk.consensus_error
        reached = next((t for t, error in enumerate(errors) if error <= REACHED), None)
        cost = ("–", "–") if reached is None else (str(reached), f"{walk.messages_per_node[reached]:.3g}")
        rows.append([letters.get(name, ""), name, *(f"{errors[t]:.1e}" for t in at), *cost])
    headings = ("", f"n = {compared.n}", *(f">round {t}" for t in at), f">to {REACHED:.0e}", ">messages")
    picture = drawing.curves({name: walk.consensus_error for name, walk in compared.kinds.items()}, LOWEST)
    out = console()
    out.print(table(headings, rows))
    out.print(Text(f"\nconsensus error by round\n{picture}"), soft_wrap=True)


def _print_sampling(found: OverlaySampling) -> None:
    k, n = found.k, found.n
    rows = [(str(b), f"{100 * share:.3g} %") for b, share in enumerate(found.more_than_b)]
    counted = f"– (counted up to {COUNTED:.0%} Byzantine members)"
    out = console()
    out.print(f"{k} of {n - 1} others sampled, {found.bad} of {n} members Byzantine\n")
    out.print(table((">robust.f", ">more than that in"), rows))
    out.print(
        f"\nat worst {found.most} of {k} in {found.rounds} rounds, at any honest node, with {100 * (1 - RISK):g} %\n"
        f"never half of them Byzantine: {f'sample {found.never_half}' if found.never_half else counted}"
    )
