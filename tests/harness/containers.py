"""Hosts that are containers of the project's own image, on a Docker network. For root, with a Docker engine."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.namespaces import ran

ROOT = Path(__file__).parents[2]
BUILD_S = 1800.0
ARGUMENTS = ("BASE", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")  # arguments of docker/Dockerfile that the environment sets


def command(*words: str, within_s: float = 60.0, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=within_s, cwd=ROOT, **settings)


def said(*words: str, within_s: float = 60.0) -> str:
    """Return the standard output of a command that must succeed."""
    ended = command(*words, within_s=within_s)
    assert ended.returncode == 0, f"{' '.join(words)}: {ended.stderr[-2000:]}"
    return ended.stdout


def needs_an_engine() -> None:
    """Skip a test without a Docker engine."""
    if shutil.which("docker") is None or command("docker", "version").returncode != 0:
        pytest.skip("no Docker engine answers (`docker version`)")


class Containers:
    """Command lines for `count` containers, at `network`.1 and on, and their namespaces when they run."""

    def __init__(self, stem: str, folder: Path, network: str, count: int) -> None:
        self.names = [f"{stem}c{number}" for number in range(count)]
        self._stem, self._folder, self._network, self._attached = stem, folder, network, list[str]()

    def line(self, number: int, words: str) -> str:
        """Return the command that runs `starling` with these arguments in a container, in the shared folder."""
        return (
            f"docker run --rm --init --name {self.names[number]} --network {self._stem} --ip {self._network}.{number + 1} "
            f"--user 0 -v {self._folder}:/shared -w /shared --entrypoint starling starling {words}"
        )

    def hosts(self) -> list[str]:
        """Return their namespaces, as names for `ip netns`, once all run."""
        for name in self.names[len(self._attached) :]:
            pid = said("docker", "inspect", "--format", "{{.State.Pid}}", name).strip()
            ran("ip", "netns", "attach", name, pid)
            self._attached.append(name)
        return self._attached

    def end(self) -> None:
        for name in self._attached:
            ran("ip", "netns", "del", name)
        for name in self.names:
            command("docker", "rm", "-f", name)


@contextmanager
def containers(count: int, folder: Path, network: str) -> Iterator[Containers]:
    """Make `count` containers of this checkout's image, on their own network `network`.0/24. The first call builds the image."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    needs_an_engine()
    given = [word for name in ARGUMENTS if name in os.environ for word in ("--build-arg", f"{name}={os.environ[name]}")]
    build = ("build", "-q", "-t", "starling", "--target", "node", *given, "-f", "docker/Dockerfile", ".")
    said("docker", *build, within_s=BUILD_S)
    stem = f"st{os.getpid() % 100_000}"
    said("docker", "network", "create", "--subnet", f"{network}.0/24", "--gateway", f"{network}.254", stem)
    made = Containers(stem, folder, network, count)
    try:
        yield made
    finally:
        made.end()
        said("docker", "network", "rm", stem)
