"""Figures and names as text for a terminal, for the command line and the terminal UI. Missing is a dash, never 0."""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from rich.cells import cell_len, set_cell_size

from starling.node.status.snapshot import Exchanges, StatusSnapshot, Transfer

MISSING: Final = "–"
ID_PREFIX: Final = "12D3KooW"  # common beginning of all ids of Ed25519 keys
ID_WIDTH: Final = 8
NAME_WIDTH: Final = 12
SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
BARS: Final = "▁▂▃▄▅▆▇█"
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def count(value: int | None) -> str:
    """Format a count: 1234567 -> 1,234,567."""
    return MISSING if value is None else f"{value:,}"


def figure(value: float | None) -> str:
    """Format a loss or metric, four significant digits at most."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value and not 1e-4 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def others(named: Iterable[tuple[str, float | None]]) -> str:
    """Further metrics behind the first, as " (auc 0.912, errors 0.031)"; "" for none."""
    shown = ", ".join(f"{metric(name)} {figure(value)}" for name, value in named)
    return f" ({shown})" if shown else ""


def small(value: float | None) -> str:
    """Format a figure that may be far below one: 0.934, 0.0123, 5.1e-04."""
    if value is None or not math.isfinite(value) or value == 0 or abs(value) >= 0.1:
        return figure(value)
    return f"{value:.4f}" if abs(value) >= 0.00995 else f"{value:.1e}"


def size(value: float | None) -> str:
    """Format bytes in decimal units: 1234567 -> 1.2 MB."""
    if value is None or not math.isfinite(value):
        return MISSING
    unit = 0
    while abs(value) >= 999.5 and unit < len(SIZES) - 1:
        value /= 1000
        unit += 1
    return f"{value:.0f} {SIZES[unit]}" if unit == 0 or abs(value) >= 9.95 else f"{value:.1f} {SIZES[unit]}"


def rate(bytes_per_s: float | None) -> str:
    """Format bytes per second."""
    return MISSING if bytes_per_s is None else f"{size(bytes_per_s)}/s"


def speed(per_s: float | None) -> str:
    """Format local steps per second."""
    if per_s is None or not math.isfinite(per_s):
        return MISSING
    return f"{per_s:.1f}/s" if per_s < 100 else f"{per_s:,.0f}/s"


def duration(seconds: float | None) -> str:
    """Format the two largest units at most: 3 s, 2 min 5 s, 1 h 4 min, 3 d 2 h."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    whole = max(0, int(seconds))
    for (unit, name), (smaller, smaller_name) in itertools.pairwise(UNITS):
        if whole >= unit:
            first, second = whole // unit, whole % unit // smaller
            return f"{first} {name} {second} {smaller_name}" if second else f"{first} {name}"
    return f"{whole} s"


def age(seconds: float | None) -> str:
    """Format the largest unit alone, for a narrow column."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    whole = max(0, int(seconds))
    return next((f"{whole // unit} {name}" for unit, name in UNITS if whole >= unit), "0 s")


def latency(seconds: float | None) -> str:
    """Format a round trip: 0.8 ms, 12 ms, 1.3 s."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds >= 0.9995:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"


def privacy(epsilon: float | None, delta: float | None) -> str:
    """Format a node's privacy loss: 1.23 (δ 1e-05). A dash without noise; ∞ for a δ alone, as JSON has no infinity."""
    if delta is None:
        return MISSING
    return f"{'∞' if epsilon is None else figure(epsilon)} (δ {delta:.0e})"


def reached(state: str, relays: Collection[str]) -> str:
    """Say how members reach a node of this `reachability`; "" while that is not known."""
    match state:
        case "reachable":
            return "members can dial this node"
        case "hidden" if relays:
            return f"reached through a relay of {', '.join(map(short, sorted(relays)))}"
        case "hidden":
            return "members cannot dial this node, and none relays for it: it dials those that can be dialled"
    return ""


def pace(snapshot: StatusSnapshot) -> str:
    """Tell for whom a node waits, and how far others are ahead of it; "" where neither is worth a word."""
    if snapshot.state != "training":
        return ""
    late = snapshot.waited is not None and snapshot.waited >= 0.01 and snapshot.waited_for
    waits = f"{share(snapshot.waited)} of the time waiting for late peers, most for {short(snapshot.waited_for)}" if late else ""
    return "; ".join(filter(None, (waits, f"{snapshot.behind} rounds behind others" if snapshot.behind else "")))


def short(text: str, width: int = ID_WIDTH) -> str:
    """Format a name or peer id in at most `width` cells, >= 4: both ends of a name, the end of a peer id.

    All peer ids begin alike, and commands accept the end of one: `starling ban …abcdefg`.
    """
    text = clean(text)
    if cell_len(text) <= width:
        return text
    head = 0 if text.startswith(ID_PREFIX) else (width - 1) // 2
    end = set_cell_size(text[::-1], width - 1 - head).rstrip()[::-1]
    return f"{set_cell_size(text, head).rstrip()}…{end}"


def labels(texts: Mapping[str, str], width: int = NAME_WIDTH) -> dict[str, str]:
    """Return unique short names for all that are shown together.

    Names are cut to `width` cells, >= 4, and peer ids to ID_WIDTH; those that would look alike keep as many more characters as distinguish
    them. Texts that are equal in full, or differ only in unprintable characters, are numbered.
    """
    unique: dict[str, str] = {}
    left = dict(sorted(texts.items()))
    extra = 0
    while left:
        cut = {key: short(text, (ID_WIDTH if text.startswith(ID_PREFIX) else width) + extra) for key, text in left.items()}
        count = Counter([*unique.values(), *cut.values()])
        unique |= {key: label for key, label in cut.items() if count[label] == 1}
        whole = [key for key, label in cut.items() if count[label] > 1 and label == clean(texts[key])]
        for key in whole:
            unique[key] = _numbered(cut[key], unique.values())
        left = {key: text for key, text in left.items() if key not in unique}
        extra += 2
    return unique


def _numbered(label: str, taken: Collection[str]) -> str:
    candidates = itertools.chain((label,), (f"{label} ({number})" for number in itertools.count(2)))
    return next(each for each in candidates if each not in taken)


def rounds(round: int, total: int) -> str:
    """Format a round: 42/200, or 42 of an endless run."""
    return f"{round:,}/{total:,}" if total else f"{round:,}"


def share(part: float | None) -> str:
    """Format a share: 0.25 -> 25 %."""
    return MISSING if part is None or not math.isfinite(part) else f"{part:.0%}".replace("%", " %")


def cores(busy: float | None) -> str:
    """Format a number of busy processor cores: 1.2 cores."""
    return MISSING if busy is None or not math.isfinite(busy) else f"{busy:.2g} core{'' if busy == 1 else 's'}"


def bar(part: float | None, width: int) -> str:
    """Format a share as a bar of this many cells; empty if it is unknown."""
    if part is None or not math.isfinite(part):
        return ""
    full = round(min(1.0, max(0.0, part)) * width)
    return "▓" * full + "░" * (width - full)


def clock(seconds: float) -> str:
    """Format a place in a recording: 02:05, 1:02:05."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def ended(counts: Exchanges) -> str:
    """Format the numbers of exchanges by their outcome."""
    return f"{counts.committed:,} done, {counts.aborted:,} aborted, {counts.busy:,} busy, {counts.timeout:,} timed out"


def progress(transfer: Transfer) -> str:
    """43 % of 120 MB, or 12 MB where the whole is not known."""
    if not transfer.total_bytes:
        return size(transfer.done_bytes)
    return f"{share(min(1.0, transfer.done_bytes / transfer.total_bytes))} of {size(transfer.total_bytes)}"


def metric(name: str) -> str:
    """Format a metric's name: bits_per_byte -> bits per byte; the manifest chooses it."""
    return clean(name).replace("_", " ")


def clean(text: str) -> str:
    """Text of another's making, safe for a terminal: one line without control characters."""
    return "".join(character if character.isprintable() else "·" for character in " ".join(text.split()))
