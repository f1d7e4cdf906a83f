"""The version of this checkout, from its newest tag `vX.Y.Z`: `python tools/version.py`.

    at the tag         0.2.0
    43 commits later   0.2.1.dev43+g1a2b3c4
    no tag yet         0.1.dev43+g1a2b3c4
    no repository      what PKG-INFO of an sdist says, else `fallback_version` of pyproject.toml

The build reads it in the same way; SETUPTOOLS_SCM_PRETEND_VERSION_FOR_STARLING_SWARM=X.Y.Z gives another. An installed Starling says it by
`importlib.metadata`; an editable one says that of the day of its installation.
"""

import sys
import tomllib
from pathlib import Path

from setuptools_scm import get_version

ROOT = Path(__file__).parents[1]


def version(root: Path = ROOT) -> str:
    """The version of a checkout or an unpacked sdist."""
    described = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return get_version(str(root), dist_name=described["project"]["name"], **described["tool"]["setuptools_scm"])


if __name__ == "__main__":
    sys.stdout.write(version() + "\n")
