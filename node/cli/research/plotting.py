"""Plots for people, written to files. matplotlib is an extra: imported here, when a plot is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starling.gossip.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR = 1e-33  # of a squared deviation in double precision; a logarithm has no place for 0


def graph_and_error(path: Path, title: str, n: int, edges: Sequence[tuple[int, int]], error: Sequence[float]) -> None:
    """One round's graph as chords of a circle, beside the consensus error over rounds.

    Args:
        path: file to write; its suffix says the format.
        title: above the plot.
        n: members.
        edges: pairs of ranks.
        error: consensus error from round 0 on.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = _figure(11.0, 5.0)
    from matplotlib.collections import LineCollection

    angles = [2.0 * math.pi * rank / n for rank in range(n)]
    spots = [(math.sin(angle), math.cos(angle)) for angle in angles]
    graph, curve = figure.subplots(1, 2)
    lines = LineCollection([(spots[i], spots[j]) for i, j in edges], linewidths=0.8, alpha=min(1.0, 0.2 + 20.0 / n))
    graph.add_collection(lines)
    graph.plot([x for x, _ in spots], [y for _, y in spots], "o", markersize=max(1.5, 6.0 - n / 20.0), color="black")
    for rank in range(0, n, math.ceil(n / 64)):
        graph.text(1.08 * spots[rank][0], 1.08 * spots[rank][1], str(rank), ha="center", va="center", fontsize=7)
    graph.set_aspect("equal")
    graph.set_axis_off()
    graph.set_title(title)
    curve.semilogy(range(len(error)), [max(value, FLOOR) for value in error])
    curve.set_xlabel("round")
    curve.set_ylabel("consensus error, 1 at the start")
    curve.grid(visible=True, alpha=0.3)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write it.

    Raises:
        ConfigError: it cannot be written there.
    """
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: the plot cannot be written, {error}; try `plot.png`") from error


def _figure(width: float, height: float) -> Figure:
    """An empty figure that belongs to no window.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib; `pip install 'starling-swarm[plot]'` brings it") from error
    return Figure(figsize=(width, height), layout="constrained")
