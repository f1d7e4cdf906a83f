"""Consent to attack: a node is Byzantine only if its owner sets two keys, and then says so in its status and events."""

from starling.gossip.errors import ConfigError
from starling.node.config.schema import NodeConfig
from starling.robust.attacks.catalogue import ATTACKS


def check(config: NodeConfig) -> None:
    """Check that the node may start with its keys about attacks.

    Raises ConfigError: an unknown attack, one without `attack_agreed`, or parameters of none.
    """
    if not config.attack:
        if config.attack_params:
            raise ConfigError("attack_params: there is no attack; set attack as well, or see `starling config show node`")
        return
    try:
        ATTACKS.check(config.attack, "attack")
    except ConfigError as error:
        raise ConfigError(f"{error}; see docs/attacks.md") from error
    if not config.attack_agreed:
        raise ConfigError(
            f"attack: {config.attack!r} lies to the swarm, for experiments in a swarm of your own; if it is yours, add "
            "`--set attack_agreed=true`"
        )


def warning(config: NodeConfig) -> str | None:
    """Return the first line of the status of a Byzantine node; None: it is honest."""
    if not config.attack:
        return None
    return f"Byzantine on purpose: this node lies to its swarm (attack = {config.attack}); honest again without `attack` in node.toml"
