"""Check that this node may, and can, do what the manifest of its swarm says."""

from pathlib import Path

from starling.gossip.errors import ConfigError
from starling.node.config import consent, crew, script
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest, NodeConfig


def check_agreed(manifest: Manifest, config: NodeConfig, *, ours: bool) -> None:
    """Check that this node may, and can, run the code that a manifest names, which has been checked as far as possible without it.

    `ours`: this node created the swarm: its owner wrote the manifest. Raises ConfigError: the owner has not agreed, a part is not found, or
    it is incompatible with the rest.
    """
    if not ours:
        consent.check(manifest, config)
    if consent.names_code(manifest):  # rules of imported code could not be checked before consent
        consent.find(manifest, code_of(config))
        manifests.check(manifest, trusted=True)
    manifests.check_shard(manifest, config.shard)
    crew.check_node(config, manifest)
    script.check_node(config, manifest)
    if config.evaluate_alone and manifest.pace.kind != "steps":
        raise ConfigError(
            f"evaluate_alone: has no effect with pace={manifest.pace.kind}, where models are mixed between any two local steps; "
            "leave it out, `--set evaluate_alone=false`"
        )


def code_of(config: NodeConfig) -> str:
    """Return the folder in which code of the manifest and of the owner's attack is searched; "" without consent to either."""
    return str(Path.cwd()) if config.trust or config.attack_agreed else ""
