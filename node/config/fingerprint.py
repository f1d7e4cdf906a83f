"""Compute the fingerprint of a custom task at a swarm's creation. Torch-free: a separate program makes the model.

Of built-in tasks the manifest's keys already say all, so they need none. That of a swarm of scripts is written by the creator's script.
"""

import subprocess
import sys

import msgspec
from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.node.catalogues import TASKS
from starling.node.config import script
from starling.node.config.schema import Manifest


def sealed(manifest: Manifest, folder: str) -> Manifest:
    """Return the manifest with the fingerprint of its task on this machine (`starling.node.engine.fingerprint`), whatever it had before; a
    swarm of scripts keeps its own.

    `folder`: where a "module:Class" is looked for after installed packages; "" without consent. Raises ConfigError: the task cannot be
    made here.
    """
    if script.trains(manifest):
        return manifest
    own = manifest.task.kind not in TASKS.built_in
    return structs.replace(manifest, task=manifest.task.changed(fingerprint=_made(manifest, folder) if own else ()))


def _made(manifest: Manifest, folder: str) -> tuple[str, ...]:
    command = [sys.executable, "-P", "-m", "starling.node.engine.fingerprint", folder]
    done = subprocess.run(command, input=msgspec.json.encode(manifest), capture_output=True, check=False)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise ConfigError(last if done.returncode == 2 else f"task.kind: the model could not be made: {last}")
    return msgspec.json.decode(done.stdout, type=tuple[str, ...])
