"""Checks of `starling doctor` for a node's machine and network: the command runs as a process of its own and takes seconds."""

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
    """The part of the command's answer that is shown."""

    checks: tuple[Check, ...]


async def examine(run_dir: Path, command: Sequence[str] = COMMAND) -> tuple[Check, ...]:
    """Return the checks, problems first. Raises ValueError: the command gave none; the reason in one line."""
    process = await asyncio.create_subprocess_exec(
        *command, str(run_dir), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise ValueError(f"`starling doctor` did not answer within {PATIENCE_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        diagnosis = msgspec.json.decode(out, type=_Diagnosis)
    except msgspec.DecodeError:
        last = (err.decode(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        raise ValueError(f"`starling doctor` failed: {last}") from None
    return tuple(sorted(diagnosis.checks, key=lambda each: [*VERDICT_SIGNS].index(each.verdict)))
