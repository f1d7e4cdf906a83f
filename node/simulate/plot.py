"""A picture of one or more runs: the metric against rounds, bytes and virtual seconds, one line a variant, a band over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from starling.gossip.errors import ConfigError
from starling.node.simulate.results import Finished, over_seeds

AXES: Mapping[str, str] = MappingProxyType(
    {"round": "rounds", "bytes_per_node": "bytes sent by a node", "seconds": "virtual seconds"}
)
"""Field of a row -> what its axis is called."""
SUFFIXES = (".png", ".svg", ".pdf")
_INCHES = (13.0, 4.2)


def check(path: Path) -> None:
    """Whether a picture can be written there, before hours of computing.

    Raises:
        ConfigError: matplotlib is missing, or the name does not say a format.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot: must end in {', '.join(SUFFIXES)}, got {path.name!r}; try `--plot {path.stem}.png`")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot: needs matplotlib, which is not installed; try `pip install 'starling-swarm[plot]'`")


def draw(finished: Sequence[Finished], title: str, target: float, path: Path) -> None:
    """Write the picture.

    Args:
        finished: at least one run.
        title: above it.
        target: a line across it; 0 is none.
        path: png, svg or pdf.

    Raises:
        ConfigError: it cannot be written there.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 — an extra that few need, and slow to import

    figure = Figure(figsize=_INCHES, layout="constrained")
    outcome = finished[0].outcome
    positive = all(row.min > 0.0 for run in finished for row in run.outcome.rows)
    for place, (field, label) in enumerate(AXES.items()):
        axes = figure.add_subplot(1, len(AXES), place + 1)
        for name, runs in over_seeds(finished):
            points = list(zip(*(run.outcome.rows for run in runs), strict=False))  # one that diverged is shorter
            across = [sum(getattr(row, field) for row in rows) / len(rows) for rows in points]
            means = [[row.mean for row in rows] for rows in points]
            (line,) = axes.plot(across, [sum(values) / len(values) for values in means], label=name or None)
            if len(runs) > 1:
                axes.fill_between(
                    across, [min(values) for values in means], [max(values) for values in means], alpha=0.2, color=line.get_color()
                )  # fmt: skip
        if target:
            axes.axhline(target, linestyle=":", color="grey")
        if not outcome.higher_is_better and positive:
            axes.set_yscale("log")
        axes.set_xlabel(label)
        if place == 0:
            axes.set_ylabel(f"{outcome.metric.replace('_', ' ')}, mean over nodes")
    if any(name for name, _ in over_seeds(finished)):
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small"
        )
    figure.suptitle(title)
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise ConfigError(f"--plot: {path} cannot be written: {error.strerror}; name another file") from error
