"""Rules for models whose buffers are averaged along with them. Torch-free."""

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.node.config.schema import Manifest

STAYS = "!"  # prefix of a buffer that is not averaged


def averaged(manifest: Manifest) -> bool:
    """Return whether any buffer is to be averaged."""
    chosen = manifest.task.buffers
    return chosen == "average" or (isinstance(chosen, tuple) and any(not name.startswith(STAYS) for name in chosen))


def check(manifest: Manifest) -> None:
    """Raise ConfigError where `task.buffers` cannot work, or would be ignored."""
    if not averaged(manifest):
        return
    mix = manifest.mix
    if not MIXERS.facts(mix.kind).carries:
        known = ", ".join(name for name in MIXERS.built_in if MIXERS.facts(name).carries)
        raise ConfigError(
            f"task.buffers: {mix.kind} exchanges more than models, so buffers cannot be averaged; must be local, or mix.kind one "
            f"of {known}; try `--set task.buffers=local`"
        )
    for key, value in (("personal", mix.personal), ("turns", mix.turns)):
        if value:
            raise ConfigError(f"task.buffers: must be local with mix.{key}; try `--set task.buffers=local`")
    if manifest.crew.stages > 1:
        raise ConfigError("task.buffers: stages of a crew average parameters alone, must be local; try `--set task.buffers=local`")
