"""Names of code in a manifest, and the consent of this machine's owner to import it. Torch-free.

A manifest is another person's. Built-in parts and those of installed packages need no consent; "module:Class" may name anything
importable, and task.path any file.
"""

import importlib.util
import sys

from starling.gossip.errors import ConfigError
from starling.node.config.parts import Section, names
from starling.node.config.schema import Manifest, NodeConfig


def names_code(manifest: Manifest) -> list[str]:
    """Return the keys other than `task.kind` whose part is a "module:Class"."""
    return [key for key, name in names(manifest).items() if ":" in name and key != "task.kind"]


def check(manifest: Manifest, config: NodeConfig) -> None:
    """Check that the owner has agreed to all that a manifest does on this machine.

    Raises ConfigError: it names code or files, and the owner has not agreed.
    """
    if config.trust:
        return
    for key, name in names(manifest).items():
        if ":" in name:
            raise ConfigError(f"{key}: this swarm wants to run {name!r} of your installation; join with --set trust=true if you agree")
    path = manifest.task.params().get("path")
    if path is not None and not config.data:
        raise ConfigError(
            f"task.path: this swarm wants to read {path!r} on your machine; join with --data PATH of "
            "your own, or with --set trust=true if you agree"
        )


def find(config: Section, folder: str) -> None:
    """Make every "module:Class" of a manifest or scenario importable from `folder`, after installed packages, so that it shadows none.

    None is imported. The folder is of the owner, who agreed to run code from it; "" without consent. Raises ConfigError: there is no such
    module; the message says where it was looked for.
    """
    for key, name in names(config).items():
        find_module(key, name, folder)


def find_module(key: str, name: str, folder: str) -> None:
    """Find one "module:Class", as `find` does; `key` is named in the error."""
    if ":" not in name:
        return
    top = name.partition(":")[0].split(".")[0]
    if folder and folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    if top.isidentifier() and importlib.util.find_spec(top) is None:
        places = f"no {top}.py in {folder} and no" if folder else "no"
        agreed = "" if folder else " with `--set trust=true`"
        raise ConfigError(
            f"{key}: {name!r} is not found: {places} installed package {top!r}; "
            f"start the node in the folder of {top}.py{agreed}, or install it with `pip install -e FOLDER`"
        )
