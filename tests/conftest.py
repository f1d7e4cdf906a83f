"""Fixtures and hooks of all tests: a reproducible scheduler, and long tables only on request."""

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.harness import scheduler
from tests.strategies import examples

REAL = "tests/real/"


def pytest_configure() -> None:
    """Restore the default handling of Ctrl-C and hang-up, which background shells and nohup disable for children."""
    gc.set_threshold(20_000, 20, 50)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    hypothesis.settings.register_profile("starling", examples(100))
    hypothesis.settings.load_profile("starling")


def pytest_collection_finish() -> None:
    """Freeze modules and collected tests, which live to the end: scanning them in every garbage collection takes an eighth of all time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run acceptance tests only if `-m` names them, since they take minutes. Tests of processes come first, as they mostly wait."""
    items.sort(key=lambda item: not item.nodeid.startswith(REAL))
    if "acceptance" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("acceptance")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if not item.get_closest_marker("acceptance")]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Distribute tests under `pytest -n 3 --dist loadfile`: a file goes to one process, which makes its fixtures once, and all of
    tests/real to a single one, so that no two swarms of processes share the machine.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return REAL if file.startswith(REAL) else file

    return Scheduling(config, log)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the test's own directory the current one, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def deterministic_scheduler() -> Iterator[Callable[[int], None]]:
    """Return a function to call with a seed before `trio.run`: the order in which trio wakes ready tasks is then reproducible."""
    with scheduler.reproducible() as seed:
        yield seed
