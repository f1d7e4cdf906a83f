"""What all tests share: a scheduler that replays, and the long tables only where they are asked for."""

from collections.abc import Callable, Iterator

import pytest
import trio


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Acceptance tests take minutes: they run if `-m` names them.

    Where several processes run the tests (`pytest -n`, `--dist loadgroup`), a file is run by one of them, so that its fixtures are made
    once; and whatever has processes or sockets of its own by a single one, so that two of these never share the machine.
    """
    if hasattr(config, "workerinput"):
        for item in items:
            group = "real" if item.get_closest_marker("real") else str(item.path)
            item.add_marker(pytest.mark.xdist_group(group))
    if "acceptance" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("acceptance")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@pytest.fixture
def deterministic_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Call it with a seed before `trio.run`: then the order in which trio wakes ready tasks replays.

    Trio shuffles them on purpose, and offers no public way to seed that; its private names stand here and nowhere else.
    """
    run = trio._core._run
    monkeypatch.setattr(run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    before = run._r.getstate()
    yield run._r.seed
    run._r.setstate(before)
