"""Facts about the machine and the commit of a measurement, without which a figure has no meaning."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
PRODUCT = ("gossip", "robust", "node", "tui")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A machine and the code on it."""

    cpu: str
    cores: int
    memory_gb: float
    system: str
    python: str
    torch: str
    libp2p: str
    commit: str
    """"" outside of a checkout, or without git."""
    modified: bool
    """The product differs from the commit; False where there is none."""


def gather() -> Facts:
    """Return the facts of this machine and this checkout."""
    import psutil

    return Facts(
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        memory_gb=round(psutil.virtual_memory().total / 1e9, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=version("torch"),
        libp2p=version("libp2p"),
        commit=_git("rev-parse", "HEAD"),
        modified=bool(_git("status", "--porcelain", "--", *PRODUCT)),
    )


def changed_since(commit: str, paths: Sequence[str], root: Path = ROOT) -> str:
    """Return the last commit that changed `paths` (as `git log --` takes them) where `commit` does not contain it, abbreviated; ""
    where it does.

    A commit that this clone does not have contains nothing; without a repository or without git nothing is known to have changed.
    """
    last = _git("log", "-1", "--format=%h", "HEAD", "--", *paths, root=root) if paths else ""
    if not last:
        return ""
    ancestor = subprocess.run(
        ["git", "-C", str(root), "merge-base", "--is-ancestor", last, commit or "0" * 40], capture_output=True, check=False
    )
    return "" if ancestor.returncode == 0 else last


def load() -> float:
    """Return the number of processes that wanted a core, averaged over a minute. Beyond the number of cores, times include others' load."""
    return round(os.getloadavg()[0], 2)


def environment() -> dict[str, str]:
    """Return the environment of measured processes: this checkout, with cached byte code as on a volunteer's machine."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str, root: Path = ROOT) -> str:
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
