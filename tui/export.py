"""What the terminal UI writes to files when asked: a node's status, its curves, a picture of the screen."""

from __future__ import annotations

import csv
import io
import re
import time
from pathlib import Path

from starling.node.status.snapshot import StatusSnapshot, encode


def status_json(snapshot: StatusSnapshot) -> str:
    """The whole snapshot, as `starling status --json` prints it."""
    return encode(snapshot).decode()


def curves_csv(snapshot: StatusSnapshot) -> str:
    """A line per point of each curve: curve, round, seconds since the start, value."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("curve", "round", "time_s", "value"))
    curves = {
        "loss": snapshot.loss_curve,
        snapshot.metric or "value": snapshot.value_curve,
        "distance": snapshot.distance_curve,
    }
    for name, points in curves.items():
        table.writerows((name, point.round, point.time_s, point.value) for point in points)
    return text.getvalue()


def save(folder: Path, name: str, suffix: str, text: str, unix_s: float) -> Path:
    """Write a new file; none is ever overwritten.

    Args:
        folder: where.
        name: of the node or screen, from which the file's name is made.
        suffix: .json, .csv or .svg.
        text: what to write.
        unix_s: time that the file's name tells.

    Returns:
        The path of the file.

    Raises:
        OSError: it cannot be written.
    """
    safe = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:64] or "node"
    stem = f"starling-{safe}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(unix_s))}"
    number = 1
    while True:
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            number += 1
        else:
            return path
