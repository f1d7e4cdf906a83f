"""Pictures of stored results: `python -m benchmarks.plots [RECIPE …]` draws `docs/reproductions/NAME.png`; without a name, all there are.

A line is the mean over seeds of overlays, the median of simulations, with a band from the least to the largest of the seeds. Differences
from plain averages are means over seeds with a band of a standard error; the axis is linear within ± _LINEAR and logarithmic beyond.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.recipes import NeverWorseRecipe, OverlaysRecipe, Plot, SimulateRecipe
from benchmarks.results import Result, Run
from benchmarks.table import PAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {"round": "rounds", "bytes_per_node": "bytes sent by a node", "seconds": "virtual seconds"}
_PANEL_INCHES = (4.2, 3.4)
_LEGEND_INCHES = 0.7
_COLOURS = 48  # colors of a picture: a third of the bytes of full color
_DPI = 75
_LEAST = 1e-16  # relative rounding of double precision: what lies below is drawn there
_STYLES = ("-", "--", "-.", ":")
_LINEAR = 0.01


def panels(result: Result) -> list[Callable[[Axes], None]]:
    """Return a function for each panel, from left to right; none for a recipe without a plot."""
    match result.recipe:
        case OverlaysRecipe(sizes=sizes):
            return [_walks(result, n, key) for key in ("rounds", "messages_per_node") for n in sizes]
        case NeverWorseRecipe():
            places = dict.fromkeys(tuple(run["cell"].split("/")[:2]) for run in result.runs)
            return [_differences(result.runs, *place) for place in places]
        case SimulateRecipe(plot=Plot() as plot):
            curves = [_curves(result, plot, title, axis) for axis in plot.axes for title in plot.panels]
            return [*curves, *(_ends(result, plot, axis) for axis in (plot.swept, "bytes_per_node") if plot.ends)]
        case _:
            return []


def draw(result: Result, path: Path) -> None:
    """Write a picture of a result that has panels."""
    from matplotlib.figure import Figure
    from PIL import Image

    drawn = panels(result)
    across = 2 if len(drawn) == 4 else min(3, len(drawn))
    down = math.ceil(len(drawn) / across)
    figure = Figure((across * _PANEL_INCHES[0], down * _PANEL_INCHES[1] + _LEGEND_INCHES), layout="constrained")
    for place, paint in enumerate(drawn):
        paint(figure.add_subplot(down, across, place + 1))
    _share(figure.axes)
    lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
    lines = {label: line for label, line in lines.items() if not str(label).startswith("_")}
    names = {"loc": "outside lower center", "ncols": min(5, len(lines)), "fontsize": "small"}
    figure.legend(list(lines.values()), list(lines), **names)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=_DPI)
    with Image.open(picture) as image:  # pillow comes with matplotlib
        image.convert("RGB").quantize(_COLOURS).save(path, optimize=True)


def _walks(result: Result, n: int, key: str) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        for place, case in enumerate(result.recipe.cases):
            runs = [run for run in result.runs if run["case"] == case and run["n"] == n]
            errors = [[max(error, _LEAST**2) for error in run["consensus_error"]] for run in runs]
            turns = range(len(errors[0]))
            across = turns if key == "rounds" else [fmean(values) for values in _points(run[key] for run in runs)]
            middle = [math.exp(fmean(map(math.log, values))) for values in _points(errors)]
            axes.plot(across, middle, _style(place), color=f"C{place}", label=case, linewidth=1.4)
        axes.set_yscale("log")
        axes.set_ylim(1e-20, 3)
        axes.set_xlim(0, 30)
        axes.set_title(f"n = {n}", fontsize="medium")
        axes.set_xlabel("rounds" if key == "rounds" else "messages sent by a node")
        axes.set_ylabel("consensus error")

    return paint


def _differences(runs: Sequence[Run], split: str, optimizer: str) -> Callable[[Axes], None]:
    kinds = dict.fromkeys(tuple(run["cell"].split("/")[2:4]) for run in runs)
    colours = {kind: f"C{place}" for place, kind in enumerate(kinds)}

    def paint(axes: Axes) -> None:
        axes.axhline(0.0, color="black", linewidth=0.8)
        own = [run for run in runs if run["cell"].split("/")[:2] == [split, optimizer]]
        for run in own:
            schedule, rate, faults = run["cell"].split("/")[2:]
            colour, style = colours[schedule, rate], "-" if faults == "calm" else "--"
            axes.plot(run["rounds"], run["difference"], style, color=colour, label=f"{schedule}, {rate}, {faults}", linewidth=1.2)
            means = zip(run["difference"], run["error"], strict=True)  # none where all runs diverged
            least, most = [], []
            for mean, error in means:
                least.append(mean - (error or 0.0))
                most.append(mean + (error or 0.0))
            axes.fill_between(run["rounds"], least, most, color=colour, alpha=0.12, linewidth=0)
        axes.set_yscale("symlog", linthresh=_LINEAR)
        axes.set_title(f"{split.replace('_', ' ')}, {optimizer}", fontsize="medium")
        axes.set_xlabel(LABELS["round"])
        axes.set_ylabel(f"{own[0]['metric'].replace('_', ' ')}, better by")

    return paint


def _curves(result: Result, plot: Plot, title: str, axis: str) -> Callable[[Axes], None]:
    places = {case: place for place, case in enumerate(result.recipe.cases)}

    def paint(axes: Axes) -> None:
        log = plot.log and axis != "round"
        for case in plot.panels[title]:
            curves = [run["curve"] for run in result.runs if run["case"] == case]
            across = [fmean(values) for values in _points(curve[axis] for curve in curves)]
            values = list(_points(curve["mean"] for curve in curves))
            if log:  # a logarithmic axis has no place for 0
                across, values = across[1:], values[1:]
            place = places[case]
            color = f"C{place % 10}"
            axes.plot(across, list(map(median, values)), _style(place), color=color, label=case, linewidth=1.4)
            if len(curves) > 1:
                least, most = list(map(min, values)), list(map(max, values))
                axes.fill_between(across, least, most, color=color, alpha=0.15, linewidth=0)
        first = result.runs[0]
        if not first["higher_is_better"]:
            axes.set_yscale("log")
        if log:
            axes.set_xscale("log")
        axes.set_ylim(plot.least, plot.most, auto=plot.least is None and plot.most is None)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel(LABELS[axis])
        axes.set_ylabel(f"{first['metric'].replace('_', ' ')}, mean over nodes")

    return paint


def _ends(result: Result, plot: Plot, axis: str) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        for place, (line, points) in enumerate(plot.ends.items()):
            of_case = [[run["curve"] for run in result.runs if run["case"] == case] for _, case in points]
            numbers = [number for number, _ in points]
            across = numbers if axis == plot.swept else [fmean(c[axis][-1] for c in curves) for curves in of_case]
            values = [median(curve["mean"][-1] for curve in curves) for curves in of_case]
            axes.plot(across, values, _style(place), color=f"C{place}", label=line, marker="o", markersize=3, linewidth=1.4)
        axes.set_xscale("log")
        axes.set_ylim(plot.least, plot.most, auto=plot.least is None and plot.most is None)
        axes.set_xlabel(LABELS.get(axis, axis))
        axes.set_ylabel(f"{result.runs[0]['metric'].replace('_', ' ')} at the end")

    return paint


def _share(panels: Sequence[Axes]) -> None:
    """Give axes with the same label the same scale."""
    for label, share in (("get_xlabel", "sharex"), ("get_ylabel", "sharey")):
        first: dict[str, Axes] = {}
        for axes in panels:
            other = first.setdefault(getattr(axes, label)(), axes)
            if other is not axes:
                getattr(axes, share)(other)
    for axes in panels:
        axes.autoscale_view()


def _points(curves: Iterator[Sequence[float]] | Sequence[Sequence[float]]) -> Iterator[tuple[float, ...]]:
    """Return the curves of several seeds, point by point; one that diverged is shorter."""
    return zip(*curves, strict=False)


def _style(place: int) -> str:
    """Return a line's style: colours repeat, so dashes distinguish lines too."""
    return _STYLES[place % len(_STYLES)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the pictures; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="name of a recipe with a stored result; default: all")
    parser.add_argument("--out", type=Path, default=PAGES, metavar="DIR", help="where pictures are written")
    chosen = parser.parse_args(arguments)
    stored = {result.name: result for result in results.newest(results.FOLDER) if panels(result)}
    unknown = [name for name in chosen.recipes if name not in stored]
    if unknown:
        parser.error(f"nothing to draw of {', '.join(unknown)}; there are {', '.join(stored)}")
    for name in chosen.recipes or stored:
        draw(stored[name], chosen.out / f"{name}.png")
        print(f"{name}: drawn to {chosen.out / name}.png", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
