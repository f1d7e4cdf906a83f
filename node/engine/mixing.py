"""From a manifest's section to the mixing algorithm it names."""

from __future__ import annotations

import inspect

from gossip.api import Mixer
from gossip.catalogue import build
from gossip.mix.catalogue import MIXERS
from node.config import MixSection


def mixer(section: MixSection) -> Mixer:
    """The algorithm; of the section's keys it gets those its constructor takes.

    Raises:
        ConfigError: unknown kind, or a value it refuses.
    """
    constructor = MIXERS.get(section.kind)
    taken = inspect.signature(constructor).parameters if constructor is not None else {}
    return build("mix", MIXERS, section.kind, {key: getattr(section, key) for key in taken})
