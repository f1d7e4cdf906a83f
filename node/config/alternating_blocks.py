"""Rules for models whose blocks are trained and exchanged in turns. Torch-free."""

from typing import Any

from starling.gossip.compress.catalogue import SELECTIONS
from starling.gossip.errors import ConfigError


def check(agreed: Any) -> None:
    """Raise ConfigError where `mix.turns` cannot work, or would be ignored."""
    mix, pace, overlay = agreed.mix, agreed.pace, agreed.overlay
    if not mix.turns:
        return
    if len(mix.turns) < 2:
        raise ConfigError('mix.turns: names at least two blocks, e.g. ["*lora_B*", "*lora_A*"], got one; leave it out')
    if mix.kind != "dsgd" or mix.order != "atc" or mix.personal or mix.own:
        raise ConfigError(
            f"mix.turns: blocks in turns are averaged plainly, by mix.kind = dsgd with order atc, no personal and no own, got {mix.kind}; "
            "try `--set mix.kind=dsgd`"
        )
    if pace.kind != "steps" or pace.overlap or overlay.overlap:
        raise ConfigError(
            "mix.turns: all nodes must train the same block, pace.kind must be steps, without pace.overlap and overlay.overlap, "
            f"got {pace.kind}; try `--set pace.kind=steps`"
        )
    select = agreed.compress.select
    if SELECTIONS.facts(select).compares:
        raise ConfigError(
            f"compress.select: {select} compares with what it knows of a peer's last block, which was another one; must be full, budget, "
            "mask, random_k or fragment with mix.turns; try `--set compress.select=budget`"
        )
