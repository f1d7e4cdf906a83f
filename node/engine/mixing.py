"""From a manifest to the mixing algorithm it names, and to the rule by which a node that gathers combines.

The owner of this machine has agreed to import what "module:Class" names: `node.config.consent` is checked before an engine starts.
"""

from __future__ import annotations

from typing import Any

from starling.gossip.api import Mixer, Rule
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.seeds import derive
from starling.node.config.schema import Manifest
from starling.robust import catalogue
from starling.robust.catalogue import RULES


def mixer(manifest: Manifest) -> Mixer:
    """The algorithm; of the section `mix` it gets the keys that its constructor takes, and a rule if it wants one.

    Raises:
        ConfigError: unknown kind, or a value it refuses.
    """
    section = manifest.mix
    taken = MIXERS.parameters(section.kind, trusted=True)
    params: dict[str, Any] = {key: getattr(section, key) for key in taken if hasattr(section, key)} | section.params
    if "rule" in taken:
        params["rule"] = rule(manifest)
    return MIXERS.build("mix", section.kind, params, trusted=True)


def rule(manifest: Manifest) -> Rule:
    """The rule of the section `robust`, of whose keys it gets those that it takes.

    Raises:
        ConfigError: unknown name, or a value it refuses.
    """
    section, rounds = manifest.robust, manifest.pace.rounds
    taken = RULES.parameters(section.rule, trusted=True)
    params: dict[str, Any] = {key: getattr(section, key) for key in taken if hasattr(section, key)} | section.params
    if section.rule == "balance" and rounds:
        params["decay"] = 1.0 / rounds  # over a run, its threshold falls to 1/e
    if section.rule == "foolsgold":
        params["seed"] = derive(manifest.seed, "histories")
    first = {
        "nnm": {"b": section.b},
        "bucketing": {"size": section.bucket, "seed": derive(manifest.seed, "bucketing")},
    }.get(section.before)
    return catalogue.rule(section.rule, params, section.before, first, trusted=True)
