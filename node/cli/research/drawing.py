"""Draw a graph as chords of a circle, and curves on a logarithmic scale: in characters, or as a plot in a file.

A braille character is two by four dots, and a terminal's cell about twice as high as wide: dots are as far apart both ways.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

from starling.gossip.errors import ConfigError

COLUMNS, LINES = 72, 34  # size of a graph, in characters: fits 80 columns
MOST_DRAWN = 64  # most members in a circle of chords; more are unreadable
BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bit of the dot in column x and line y of a character
CURVE_LINES = 16
FLOOR = 1e-33  # smallest squared deviation in double precision, as a logarithm has no 0


def chords(n: int, edges: Iterable[tuple[int, int]]) -> str:
    """Draw 1 … MOST_DRAWN members around a circle, rank 0 on top and on clockwise, and a line for each edge, a pair of ranks.

    At most LINES lines of at most COLUMNS characters.
    """
    cells = [[BLANK] * COLUMNS for _ in range(LINES)]
    middle, radius = (COLUMNS - 1.0, 2.0 * LINES - 0.5), 2.0 * LINES - 9.0
    spots = [_spot(middle, radius, rank, n) for rank in range(n)]
    for one, other in edges:
        for x, y in _line(spots[one], spots[other]):
            cells[y // 4][x // 2] |= DOTS[x % 2][y % 4]
    text = [[" " if cell == BLANK else chr(cell) for cell in line] for line in cells]
    every = math.ceil(n / 40)
    for rank in range(0, n, every):
        x, y = _spot(middle, radius + 5.0, rank, n)
        label = str(rank)
        first = x // 2 - (len(label) - 1) // 2
        text[y // 4][first : first + len(label)] = label
    return "\n".join("".join(line).rstrip() for line in text).strip("\n")


def curves(series: Mapping[str, Sequence[float]], lowest: float) -> str:
    """Draw values >= 0 from round 0 on, all equally long, on a logarithmic scale from 1 down to `lowest`, which also stands for lower
    values.

    One letter a curve: a the first, b the second, … Lines of at most 80 characters, the last with the rounds.
    """
    width, margin = COLUMNS, 7
    decades = -math.log10(lowest)
    grid = [[" "] * width for _ in range(CURVE_LINES)]
    last = max(len(values) for values in series.values()) - 1
    for letter, values in zip(ascii_lowercase, series.values(), strict=False):
        for column in range(width):
            value = values[round(column * last / (width - 1))]
            depth = min(max(-math.log10(value) if value > 0.0 else decades, 0.0), decades)
            grid[round(depth / decades * (CURVE_LINES - 1))][column] = letter
    scale = {line: f"{10 ** -(line * decades / (CURVE_LINES - 1)):.0e}" for line in range(5, CURVE_LINES, 5)} | {0: "1"}
    lines = [f"{scale.get(line, ''):>{margin - 2}} │{''.join(row).rstrip()}" for line, row in enumerate(grid)]
    ruler = f"{'0':<{width - len(str(last))}}{last}"
    return "\n".join([*lines, " " * (margin - 1) + "└" + "─" * width, " " * margin + ruler])


def graph_and_error(path: Path, title: str, n: int, edges: Sequence[tuple[int, int]], error: Sequence[float]) -> None:
    """Plot one round's graph of n members as chords of a circle, beside the consensus error from round 0 on.

    Raises ConfigError: matplotlib, an extra, is not installed, or the file cannot be written. Its suffix says the format.
    """
    try:
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ConfigError("plots need matplotlib; `pip install 'starling-swarm[plot]'` brings it") from missing
    figure = Figure(figsize=(11.0, 5.0), layout="constrained")
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
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as refused:
        raise ConfigError(f"{path}: the plot cannot be written, {refused}; try `plot.png`") from refused


def _spot(middle: tuple[float, float], radius: float, rank: int, n: int) -> tuple[int, int]:
    angle = 2.0 * math.pi * rank / n
    return round(middle[0] + radius * math.sin(angle)), round(middle[1] - radius * math.cos(angle))


def _line(start: tuple[int, int], end: tuple[int, int]) -> Iterable[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return (
        (round(start[0] + (end[0] - start[0]) * step / steps), round(start[1] + (end[1] - start[1]) * step / steps))
        for step in range(steps + 1)
    )
