"""Rules for models of which a node does not share a part, or a share of each step. Torch-free."""

from typing import Any

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS


def check(agreed: Any) -> None:
    """Raise ConfigError where `mix.personal` or `mix.own` cannot work, or would be ignored."""
    mix, overlay, pace = agreed.mix, agreed.overlay, agreed.pace
    facts = MIXERS.facts(mix.kind)
    if mix.personal and (facts.gathers or facts.broadcasts or facts.swaps):
        raise ConfigError(
            f"mix.personal: {mix.kind} sends whole models, of which no part can stay at home; leave it out, or try `--set mix.kind=pet`"
        )
    if not mix.own:
        return
    if mix.kind != "dsgd" or mix.order != "atc":
        raise ConfigError(
            f"mix.own: ends that take shares of their own choice do not keep the mean of models, which {mix.kind} counts on; "
            "must be 0, or `--set mix.kind=dsgd --set mix.order=atc`"
        )
    if overlay.average_every:
        raise ConfigError(
            f"overlay.average_every: no average is exact where each end takes a share of its choice, must be 0 with mix.own, "
            f"got {overlay.average_every}; try `--set overlay.average_every=0`"
        )
    if pace.overlap:
        raise ConfigError("pace.overlap: a share is chosen by the model that it changes, must be false with mix.own; leave it out")
