"""Names in a manifest that stand for code, and the consent of this machine's owner to import it. Torch-free.

A manifest is written by somebody else. Built-in parts and those of installed packages need no consent; "module:Class" may name anything
importable, and task.params.path any file.
"""

from __future__ import annotations

from starling.gossip.errors import ConfigError
from starling.node.config.kinds import names
from starling.node.config.schema import Manifest, NodeConfig


def names_code(manifest: Manifest) -> list[str]:
    """Keys whose part is a "module:Class", the task's aside: nothing is checked by what a task is."""
    return [key for key, name in names(manifest).items() if ":" in name and key != "task.kind"]


def check(manifest: Manifest, config: NodeConfig) -> None:
    """Whether the owner has agreed to all that a manifest wants of this machine.

    Raises:
        ConfigError: it names code or files, and the owner has not agreed.
    """
    if config.trust:
        return
    for key, name in names(manifest).items():
        if ":" in name:
            raise ConfigError(
                f"{key}: this swarm wants to run {name!r} of your installation; join with --set trust=true if you agree"
            )
    if "path" in manifest.task.params and not config.data:
        raise ConfigError(
            f"task.params.path: this swarm wants to read {manifest.task.params['path']!r} on your machine; join with --data PATH of "
            "your own, or with --set trust=true if you agree"
        )
