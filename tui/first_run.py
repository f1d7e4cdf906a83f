"""Remember if a person has seen the terminal UI before."""

import os
from pathlib import Path


def first_run() -> bool:
    """True once per user, which an empty file in the XDG state directory remembers; False where that cannot be written."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    try:
        (folder / "starling").mkdir(parents=True, exist_ok=True)
        (folder / "starling" / "tour-offered").touch(exist_ok=False)
    except (OSError, RuntimeError):  # the latter of a user without a home
        return False
    return True
