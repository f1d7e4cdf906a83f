"""Final status of a node whose process ended: `final.json` in the run directory. A leaf: imports only `starling.node.status`.

One JSON object, written when the last round is done and again when the process ends; removed when a node starts in that directory. So if it
is there and no node answers on the control socket, it says how the last run ended:

    {"ended": "finished" | "left" | "failed", "reason": "…", "model": "model.safetensors", "snapshot": {…}}

`snapshot` is a whole StatusSnapshot (see docs/schemas), its state "finished", "leaving" or "failed". A node that was killed leaves no file.
"""

from pathlib import Path
from typing import Final, Literal

import msgspec

from starling.node.status import format as show
from starling.node.status.control import typed
from starling.node.status.snapshot import StatusSnapshot
from starling.node.versions import SNAPSHOT, unreadable

FINAL_NAME: Final = "final.json"

Ended = Literal["finished", "left", "failed"]


class FinalStatus(msgspec.Struct, frozen=True):
    """How a run ended, and the node's last status."""

    ended: Ended
    """finished: all rounds are done. left: stopped before, in order. failed: `reason` says why."""
    snapshot: StatusSnapshot
    reason: str = ""
    """One line, the same as on standard error; "" unless failed."""
    model: str = ""
    """File of the exported model, relative to the run directory; "" while there is none."""


def encode(final: FinalStatus) -> str:
    """Return the file's text."""
    return msgspec.json.encode(final).decode() + "\n"


def load(run_dir: Path) -> FinalStatus | None:
    """Return how the last run in `run_dir` ended; None if it is not known: it never ran, still runs, or was killed.

    Raises ValueError: the file is damaged or of another version; one line that names it.
    """
    path = run_dir / FINAL_NAME
    try:
        final = msgspec.json.decode(path.read_bytes(), type=FinalStatus)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    if final.snapshot.version not in SNAPSHOT:
        raise ValueError(unreadable(f"{path}: a status", final.snapshot.version, SNAPSHOT, f"move it away with `mv {path} {path}.old`"))
    return final


def how_ended(last: FinalStatus, run_dir: Path) -> str:
    """Return one line such as `finished: 100 rounds, accuracy 0.956; model in …`."""
    seen = last.snapshot
    value = "" if seen.value is None else f", {show.metric(seen.metric) or 'value'} {show.figure(seen.value)}"
    rounds = f"{show.count(seen.round)} {'round' if seen.round == 1 else 'rounds'}{value}"
    model = f"; model in {run_dir / last.model}" if last.model else ""
    match last.ended:
        case "finished":
            return f"finished: {rounds}{model}"
        case "left":
            way = "by running the script again" if last.snapshot.task == "script" else f"with `starling run --dir {typed(run_dir)}`"
            return f"left after {rounds}{model}; continue {way}"
        case _:
            return f"failed after {rounds}: {show.clean(last.reason)}; see `starling logs --dir {typed(run_dir)}`"
