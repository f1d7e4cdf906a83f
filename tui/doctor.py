"""What `starling doctor` finds of a node's machine and network: asked of the command, which takes seconds in a process of its own."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from starling.node.status.check import Check
from starling.tui.drawing.palette import VERDICT_SIGNS

COMMAND = (sys.executable, "-m", "starling.node.cli.main", "doctor", "--json", "--dir")
PATIENCE_S = 60.0  # torch may take 20 s to start, and a bootstrap address three


class _Diagnosis(msgspec.Struct, frozen=True):
    """What of the answer is drawn."""

    checks: tuple[Check, ...]


async def examine(run_dir: Path, command: Sequence[str] = COMMAND) -> tuple[Check, ...]:
    """Its checks, problems first. Raises ValueError: it gave none, and why, in one line."""
    asked = await asyncio.create_subprocess_exec(
        *command,
        str(run_dir),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await asked.communicate()
    except TimeoutError:
        raise ValueError(f"`starling doctor` did not answer within {PATIENCE_S:.0f} s") from None
    finally:
        if asked.returncode is None:
            with suppress(ProcessLookupError):
                asked.kill()
            await asked.wait()
    try:
        found = msgspec.json.decode(out, type=_Diagnosis)
    except msgspec.DecodeError:
        last = (err.decode(errors="replace").strip().splitlines() or [f"exit status {asked.returncode}"])[-1]
        raise ValueError(f"`starling doctor` failed: {last}") from None
    return tuple(sorted(found.checks, key=lambda each: [*VERDICT_SIGNS].index(each.verdict)))
