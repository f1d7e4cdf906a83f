"""One line of the log as text, for the node's own terminal and `starling logs`. A leaf: the log's file has it as JSON."""

from collections.abc import Callable, Mapping
from typing import Final

LOG_NAME: Final = "log.jsonl"
MARKS: Final[Mapping[str, str]] = {"warning": "! ", "error": "✗ ", "critical": "✗ "}
"""Two characters for the severity, so that color is not needed; two spaces for all other levels."""
HIDDEN: Final = ("time", "level", "event", "text", "peer_id", "run_id")
"""Fields that are shown otherwise, or are the same in every line."""


def log_line(event: Mapping[str, object], when: str, figure: Callable[[object], str] = str) -> str:
    """Return time, name and the other fields of an event in brackets, formatted by `figure`; without control characters."""
    mark, name = MARKS.get(str(event.get("level")), "  "), event.get("event", "–")
    text = f"{name}: {event['text']}" if "text" in event else str(name)
    fields = " ".join(f"{key}={figure(value)}" for key, value in event.items() if key not in HIDDEN)
    line = f"{when} {mark}{text}" + (f"  [{fields}]" if fields else "")
    return "".join(character if character.isprintable() else "·" for character in line)
