"""A picture of many runs: the metric against rounds, bytes or virtual seconds, one line a variant, mean ± sd over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from starling.gossip.errors import ConfigError, GossipError
from starling.node.simulate.results import AXES, Finished, Row, variants, varying

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELS = {"rounds": ("rounds", ""), "bytes": ("bytes sent by a node", "B"), "seconds": ("virtual seconds", "s")}
SUFFIXES = (".png", ".svg", ".pdf")
_COLOURS = 10
_STYLES = ("solid", "dashed", "dotted", "dashdot")
_PANEL_INCHES, _LEGEND_INCHES, _LINE_INCHES = 4.4, 2.6, 0.19
_LEGEND_LINES = 30  # lines of a legend beside a panel; further ones are in another column


def check(path: Path | None) -> None:
    """Check that a plot can be drawn and written there, before hours of computing.

    Raises ConfigError: matplotlib is missing, or the name does not say a format.
    """
    if path is not None and path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot: must end in {', '.join(SUFFIXES)}, got {path.name!r}; try `--plot {path.stem}.png`")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot: needs matplotlib, which is not installed; try `pip install 'starling-swarm[plot]'`")


def figure(finished: Sequence[Finished], title: str, target: float, *, x: str | None = None, group: Sequence[str] = ()) -> Figure:
    """Return the picture of at least one run, against `x`, a name in `results.AXES`; None: a panel for each. `group` as of
    `results.variants`.

    A target that is not 0 is a line across it. Raises ConfigError: `x` or `group` names nothing that is there.
    """
    from matplotlib import colormaps  # noqa: PLC0415 — an extra that few need, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415

    if x is not None and x not in AXES:
        raise ConfigError(f"--x: must be one of {', '.join(AXES)}, got {x!r}")
    panels = (x,) if x is not None else tuple(AXES)
    lines = variants(finished, group)
    columns = -(-len(lines) // _LEGEND_LINES)
    wide = _PANEL_INCHES * len(panels) * (1.6 if x else 1.0) + (_LEGEND_INCHES * columns if len(lines) > 1 else 0.0)
    high = max(4.2, 1.0 + _LINE_INCHES * min(len(lines), _LEGEND_LINES))
    picture = Figure(figsize=(wide, high), layout="constrained")
    outcome, colours = finished[0].outcome, colormaps["tab10"]
    positive = all(row.min > 0.0 for run in finished for row in run.outcome.rows)
    for number, name in enumerate(panels):
        axes = picture.add_subplot(1, len(panels), number + 1)
        for at, (label, runs) in enumerate(lines):
            style = _STYLES[at // _COLOURS % len(_STYLES)]
            _line(axes, [run.outcome.rows for run in runs], AXES[name], label, colours(at % _COLOURS), style)
        if target:
            axes.axhline(target, linestyle=":", color="grey")
        if not outcome.higher_is_better and positive:
            axes.set_yscale("log")
        below, unit = _LABELS[name]
        axes.set_xlabel(below)
        axes.xaxis.set_major_formatter(EngFormatter(unit=unit))
        axes.grid(visible=True, alpha=0.25)
        if number == 0:
            axes.set_ylabel(f"{outcome.metric.replace('_', ' ')}, mean over nodes")
    if len(lines) > 1:
        handles = picture.axes[0].get_legend_handles_labels()
        heading = ", ".join(group or varying(finished))
        picture.legend(*handles, title=heading, loc="outside right upper", ncols=columns, fontsize="small")
    seeds = max(len(runs) for _, runs in lines)
    picture.suptitle(f"{title}, mean ± standard deviation of {seeds} runs" if seeds > 1 else title)
    return picture


def _line(axes: Axes, runs: Sequence[Sequence[Row]], field: str, label: str, colour: tuple[float, ...], style: str) -> None:
    """Draw one variant: its mean, and a band of one standard deviation if it has more than one run."""
    points = list(zip(*runs, strict=False))  # a diverged run is shorter
    across = [fmean(getattr(row, field) for row in rows) for rows in points]
    values = [[row.mean for row in rows] for rows in points]
    means = [fmean(each) for each in values]
    axes.plot(across, means, label=label or None, color=colour, linestyle=style, linewidth=1.4)
    if len(runs) > 1:
        spread = [stdev(each) for each in values]
        # a logarithmic axis needs values > 0
        low = [max(mean - sd, min(each)) for mean, sd, each in zip(means, spread, values, strict=True)]
        high = [mean + sd for mean, sd in zip(means, spread, strict=True)]
        axes.fill_between(across, low, high, alpha=0.15, color=colour, linewidth=0.0)


def save(picture: Figure, path: Path) -> None:
    """Write it. Raises GossipError: it cannot be written there."""
    try:
        picture.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise GossipError(f"--plot: {path} cannot be written: {error.strerror}; name another file") from error
