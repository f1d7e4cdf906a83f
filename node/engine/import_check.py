"""Whether a module that a manifest names can be imported on this machine: `starling manifest check` starts this program.

    python -P -m starling.node.engine.import_check FOLDER KEY MODULE:NAME

Exit 2 and one line on standard error if not. What the module prints goes there too.
"""

from __future__ import annotations

import importlib
import os
import sys

from starling.gossip.errors import ConfigError
from starling.node.config import consent
from starling.node.engine import own_code


def check(key: str, kind: str, folder: str) -> None:
    """Import the module and look for the name.

    Args:
        key: of the manifest, for the message.
        kind: `module:name` of a class or a function.
        folder: where the module is looked for after installed packages.

    Raises:
        ConfigError: there is no such module, importing it fails, or it has no such class or function; with file and line.
    """
    consent.find_module(key, kind, folder)
    name, _, attribute = kind.partition(":")
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{key}: importing {name!r} failed: {own_code.describe(error)}") from error
    if not callable(getattr(module, attribute, None)):
        raise ConfigError(f"{key}: {module.__file__} has no class or function {attribute!r}")


if __name__ == "__main__":
    os.dup2(2, 1)
    try:
        check(sys.argv[2], sys.argv[3], sys.argv[1])
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
