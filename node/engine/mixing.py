"""Make the mixing algorithm that a manifest names, and the rule by which a gathering node combines vectors.

The owner of this machine has agreed to import what "module:Class" names: `node.config.consent` is checked before an engine starts.
"""

from starling.gossip.api import Mixer, Rule
from starling.gossip.mix import alternating_blocks
from starling.gossip.mix.alternating_blocks import AlternatingBlocks, blocks_of
from starling.gossip.mix.carried import carrying
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.moments import Moments, in_place_of_flows
from starling.gossip.mix.personal import Personal, at_home, shared_layout, shared_spans
from starling.gossip.mix.pet import SETTLED_EDGES
from starling.gossip.seeds import derive
from starling.gossip.vector import Layout
from starling.node.config.schema import Manifest
from starling.robust import catalogue


def mixer(manifest: Manifest) -> Mixer:
    """Return the mixing algorithm, from the keys of the section `mix` that it takes. Raises ConfigError for an unknown kind or value."""
    section = manifest.mix
    if in_place_of_flows(manifest):
        return Moments()
    params = section.params()
    taken = MIXERS.parameters(section.kind, trusted=True)
    if "rule" in taken:
        params["rule"] = rule(manifest)
    supplied = {"seed": manifest.seed, "steps": manifest.pace.local_steps}
    params |= {name: value for name, value in supplied.items() if name in taken}
    return MIXERS.build("mix", section.kind, params, trusted=True)


def mixer_of(manifest: Manifest, layout: Layout) -> tuple[Mixer, Layout]:
    """Return the mixing algorithm for models of this layout, and the layout of what it shares of them.

    Raises ConfigError: as `mixer`; or `mix.personal` matches nothing, or everything; or `mix.turns` are no blocks of this model.
    """
    whole = mixer(manifest)
    if manifest.mix.turns:
        taking = AlternatingBlocks(blocks_of(layout, manifest.mix.turns))
        return taking, alternating_blocks.shared_layout(taking, layout)
    if not manifest.mix.personal:
        alike = not layout.carried or MIXERS.facts(manifest.mix.kind, trusted=True).gathers
        return whole if alike else carrying(whole, layout), layout
    home = at_home(layout, manifest.mix.personal)
    return Personal(whole, shared_spans(layout, home)), shared_layout(layout, home)


def settled_edges(manifest: Manifest) -> int:
    """Return how many flows of closed edges stay revocable."""
    kept: int = manifest.mix.params().get("settled_edges", SETTLED_EDGES)
    return kept


def rule(manifest: Manifest) -> Rule:
    """Return the rule, from the keys of the section `robust` that it takes. Raises ConfigError for an unknown name or value."""
    section, rounds = manifest.robust, manifest.pace.rounds
    params, first = section.params("rule"), section.params("before") if section.before else {}
    if section.rule == "balance" and rounds:
        params["decay"] = 1.0 / rounds  # the threshold falls to 1/e over a run
    if section.rule == "foolsgold":
        params["seed"] = derive(manifest.seed, "histories")
    if section.before == "bucketing":
        first["seed"] = derive(manifest.seed, "bucketing")
    return catalogue.rule(section.rule, params, section.before, first, trusted=True)
