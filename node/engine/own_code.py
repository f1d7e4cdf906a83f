"""A task that somebody wrote: where its module is found, and what to say when it raises."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path

from starling.gossip.errors import ConfigError

_PATHS = sysconfig.get_paths()
_ELSEWHERE = tuple(
    str(Path(path).resolve()) for path in (_PATHS["stdlib"], _PATHS["purelib"], _PATHS["platlib"], Path(__file__).parents[2])
)  # fmt: skip
_LONGEST = 300  # characters of an error's own text


def find(key: str, name: str, folder: str) -> None:
    """Make `module:Class` importable from `folder`, after everything that is installed, so that it shadows nothing.

    Args:
        key: of the manifest, for the message.
        name: built-in names, without a colon, are left alone.
        folder: of the owner, who agreed to run code from it; "" for none.

    Raises:
        ConfigError: there is no such module; the message says where it was looked for.
    """
    if ":" not in name:
        return
    top = name.partition(":")[0].split(".")[0]
    if folder and folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    if top.isidentifier() and importlib.util.find_spec(top) is None:
        places = f"no {top}.py in {folder} and no" if folder else "no"
        raise ConfigError(
            f"{key}: {name!r} is not found: {places} installed package {top!r}; "
            f"start the node in the folder of {top}.py, or install it with `pip install -e FOLDER`"
        )


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
