"""Wheels and sdists of this tree or of a changed copy, and environments to install them in, without an index."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from tests.harness.processes import ROOT

PARTS = ("gossip", "robust", "node", "tui", "examples")
BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"


def run(*command, **options):
    """Run a command without this process's paths; return its output."""
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment | {"OMP_NUM_THREADS": "1"}, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def source_tree(folder: Path, changes=()):
    """Copy the files that `make dist` builds from, with links; each change is (file, unique text, replacement)."""
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in (*PARTS, "src", "benchmarks/kernels"):
        shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=skip)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder)
    for file, old, new in changes:
        text = (folder / file).read_text()
        assert text.count(old) == 1, (file, old)
        (folder / file).write_text(text.replace(old, new))
    return folder


def distributions(source: Path, out: Path):
    """Build (wheel, sdist)."""
    run(sys.executable, "-c", BUILD, out, cwd=source)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def environment(home: Path, *wheels: Path):
    """Make an environment with the wheels only, which sees other packages where this one has them; return its site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", home)
    site = next(home.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(f"{Path(click.__file__).parents[1]}\n")
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--disable-pip-version-check"]
    run(*pip, "install", "-q", "--no-deps", "--no-index", *wheels)
    return site
