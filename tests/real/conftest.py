"""Fixtures for tests of real processes."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from starling.node import forks
from tests.harness import processes


@pytest.fixture(scope="session")
def engine_servers() -> Iterator[Path | None]:
    """Start servers that have imported torch and fork engines, as in a demo; None where that is impossible."""
    if not forks.available():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="starling-forks-") as folder, forks.Servers(Path(folder)):
        yield Path(folder)


@pytest.fixture
def warm_engines(engine_servers: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines of this test's nodes start in a tenth of a second instead of four; other tests cover a normal start."""
    if engine_servers is not None:
        for environment in (os.environ, processes.ENVIRONMENT):
            monkeypatch.setitem(environment, forks.FOLDER, str(engine_servers))
