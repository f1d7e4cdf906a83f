"""From a manifest to the mixing algorithm it names, and to the rule by which a node that gathers combines."""

from __future__ import annotations

import inspect

from starling.gossip.api import Mixer, Rule
from starling.gossip.catalogue import build
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.seeds import derive
from starling.node.config.schema import Manifest
from starling.robust import catalogue
from starling.robust.facts import FACTS


def mixer(manifest: Manifest) -> Mixer:
    """The algorithm; of the section `mix` it gets the keys that its constructor takes, and a rule if it wants one.

    Raises:
        ConfigError: unknown kind, or a value it refuses.
    """
    section = manifest.mix
    constructor = MIXERS.get(section.kind)
    taken = inspect.signature(constructor).parameters if constructor is not None else {}
    params = {key: rule(manifest) if key == "rule" else getattr(section, key) for key in taken}
    return build("mix", MIXERS, section.kind, params)


def rule(manifest: Manifest) -> Rule:
    """The rule of the section `robust`, of whose keys it gets those that it takes.

    Raises:
        ConfigError: unknown name, or a value it refuses.
    """
    section, rounds = manifest.robust, manifest.pace.rounds
    keys = FACTS[section.rule].keys if section.rule in FACTS else ()
    params = {key: getattr(section, key) for key in keys}
    if section.rule == "balance" and rounds:
        params["decay"] = 1.0 / rounds  # over a run, its threshold falls to 1/e
    if section.rule == "foolsgold":
        params["seed"] = derive(manifest.seed, "histories")
    first = {
        "nnm": {"b": section.b},
        "bucketing": {"size": section.bucket, "seed": derive(manifest.seed, "bucketing")},
    }.get(section.before)
    return catalogue.rule(section.rule, params, section.before, first)
