"""Packages installed beside Starling, without pip: a module, its metadata and its entry points in a folder on sys.path."""

import importlib
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

from starling.gossip import catalogue


class Shelf:
    """A folder of installed packages, as `pip install` leaves them."""

    def __init__(self, folder):
        self.folder = folder

    def install(self, pyproject, **modules):
        project = tomllib.loads(pyproject)["project"]
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(source)
        info = self.folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
        lines = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        importlib.invalidate_caches()
        catalogue.offered.cache_clear()

    def offer(self, package, name, value, group="starling.selectors", **modules):
        self.install(f'[project]\nname = "{package}"\nversion = "1.0"\n[project.entry-points."{group}"]\n{name} = "{value}"\n', **modules)


@contextmanager
def shelf(folder, monkeypatch):
    """Make a folder whose packages are installed until the context ends."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    catalogue.offered.cache_clear()
    try:
        yield Shelf(folder)
    finally:
        catalogue.offered.cache_clear()
        for module in set(sys.modules) - before:
            file = getattr(sys.modules[module], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[module]
