"""What to say when the owner's own code raises."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_PATHS = sysconfig.get_paths()
_ELSEWHERE = tuple(
    str(Path(path).resolve()) for path in (_PATHS["stdlib"], _PATHS["purelib"], _PATHS["platlib"], Path(__file__).parents[2])
)  # fmt: skip
_LONGEST = 300  # characters of an error's own text


def describe(error: BaseException) -> str:
    """One line: what was raised, and the last line of the owner's own code on the way there."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    said = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST].rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_installed(frame.filename)] or frames
    if not own:
        return said
    frame = own[-1]
    return f"{said} ({frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line})"


def _is_installed(filename: str) -> bool:
    return filename.startswith("<") or str(Path(filename).resolve()).startswith(_ELSEWHERE)
