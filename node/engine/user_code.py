"""Import code that a manifest names, on trial, and describe its errors. `starling manifest check` starts this program.

    python -P -m starling.node.engine.user_code FOLDER KEY SECTION

SECTION is JSON. Exit 2 and one line on standard error if the part that KEY names cannot be imported, or does not take the section's keys.
What it prints goes there too.
"""

import importlib
import json
import os
import sys
import sysconfig
import traceback
from pathlib import Path

from starling.gossip.errors import ConfigError
from starling.node.config import consent
from starling.node.config.parts import convert
from starling.node.config.schema import Manifest

_PATHS = sysconfig.get_paths()
_ELSEWHERE = tuple(
    str(Path(path).resolve()) for path in (_PATHS["stdlib"], _PATHS["purelib"], _PATHS["platlib"], Path(__file__).parents[2])
)
_LONGEST = 300  # most characters of an error's own text


def describe(error: BaseException) -> str:
    """Return one line: the error, and the last line of the owner's own code in its traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST].rstrip(": ")
    frame = _raised(error)
    return text if frame is None else f"{text} ({frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line})"


def place(error: BaseException) -> str:
    """Return file and line of the owner's code that raised; "" if there is none."""
    frame = _raised(error)
    return "" if frame is None else f"{frame.filename}, line {frame.lineno}"


def _raised(error: BaseException) -> traceback.FrameSummary | None:
    """Return the last call of the owner's own code in a traceback, else of any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_installed(frame.filename)] or frames
    return own[-1] if own else None


def _is_installed(filename: str) -> bool:
    return filename.startswith("<") or str(Path(filename).resolve()).startswith(_ELSEWHERE)


def check(key: str, kind: str, folder: str) -> None:
    """Import the module of `module:name`, searched in `folder` after installed packages, and find the name in it.

    Raises ConfigError: not found or importing fails, with the key, file and line.
    """
    consent.find_module(key, kind, folder)
    name, _, attribute = kind.partition(":")
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{key}: importing {name!r} failed: {describe(error)}") from error
    if not callable(getattr(module, attribute, None)):
        raise ConfigError(f"{key}: {module.__file__} has no class or function {attribute!r}")


if __name__ == "__main__":
    os.dup2(2, 1)
    try:
        folder, where, given = sys.argv[1:]
        name, _, part = where.partition(".")
        values = json.loads(given)
        if ":" in values[part]:
            check(where, values[part], folder)
        convert({name: values}, Manifest, trusted=True)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
