"""Pictures of characters: a graph as chords of a circle, and curves on a logarithmic scale. Pure functions of numbers.

A braille character is two by four dots, and a terminal's cell about twice as high as wide: dots are as far apart both ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

COLUMNS, LINES = 72, 34
"""Size of a graph, in characters: fits 80 columns."""
MOST_DRAWN = 64
"""Members beyond which a circle of chords is a blot."""
BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of the dot in column x and line y of a character."""
CURVE_LINES = 16


def chords(n: int, edges: Iterable[tuple[int, int]]) -> str:
    """Members around a circle, rank 0 on top and on clockwise, and a line for each edge.

    Args:
        n: members, 1 … MOST_DRAWN.
        edges: pairs of ranks.

    Returns:
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
    """Values from 1 downwards over rounds, on a logarithmic scale, one letter a curve: a the first, b the second, …

    Args:
        series: name -> values from round 0 on, >= 0; all equally long.
        lowest: where the scale ends, < 1; what is below is drawn there.

    Returns:
        Lines of at most 80 characters, the last with the rounds.
    """
    width, margin = COLUMNS, 7
    decades = -math.log10(lowest)
    grid = [[" "] * width for _ in range(CURVE_LINES)]
    last = max(len(values) for values in series.values()) - 1
    for letter, values in zip(_letters(), series.values(), strict=False):
        for column in range(width):
            value = values[round(column * last / (width - 1))]
            depth = min(max(-math.log10(value) if value > 0.0 else decades, 0.0), decades)
            grid[round(depth / decades * (CURVE_LINES - 1))][column] = letter
    scale = {line: f"{10 ** -(line * decades / (CURVE_LINES - 1)):.0e}" for line in range(5, CURVE_LINES, 5)} | {0: "1"}
    lines = [f"{scale.get(line, ''):>{margin - 2}} │{''.join(row).rstrip()}" for line, row in enumerate(grid)]
    ruler = f"{'0':<{width - len(str(last))}}{last}"
    return "\n".join([*lines, " " * (margin - 1) + "└" + "─" * width, " " * margin + ruler])


def letters(names: Iterable[str]) -> dict[str, str]:
    """The letter of each name's curve; curves beyond the alphabet are not drawn."""
    return dict(zip(names, _letters(), strict=False))


def _letters() -> str:
    return "abcdefghijklmnopqrstuvwxyz"


def _spot(middle: tuple[float, float], radius: float, rank: int, n: int) -> tuple[int, int]:
    angle = 2.0 * math.pi * rank / n
    return round(middle[0] + radius * math.sin(angle)), round(middle[1] - radius * math.cos(angle))


def _line(start: tuple[int, int], end: tuple[int, int]) -> Iterable[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return (
        (round(start[0] + (end[0] - start[0]) * step / steps), round(start[1] + (end[1] - start[1]) * step / steps))
        for step in range(steps + 1)
    )
