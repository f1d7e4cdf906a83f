"""Choose the exchanges of a replica by the kind of its edges: the only place that asks for the kind."""

from dataclasses import replace

from starling.gossip.compress.budget import Effort
from starling.gossip.compress.select.coordinates import kept
from starling.gossip.errors import ConfigError
from starling.gossip.mix.kinds import SWAPPED, EdgeKind
from starling.gossip.replica import Replica
from starling.node.config import frame
from starling.node.config.robustness import defended
from starling.node.engine.compression import beside, exchange_codec, parts, selection, selector_facts
from starling.node.engine.exchange.adversary import Adversary
from starling.node.engine.exchange.api import Exchange, Site
from starling.node.engine.exchange.besides import DifferencesOnly, Memories
from starling.node.engine.exchange.broadcasts import Broadcasts
from starling.node.engine.exchange.byzantine import Byzantine, ForgedVectors, Overheard
from starling.node.engine.exchange.defence import ByDistance, Defence, Undefended
from starling.node.engine.exchange.differences import Differences
from starling.node.engine.exchange.gathers import Gathers
from starling.node.engine.exchange.known_peers import LastKnown, NothingKnown
from starling.node.engine.exchange.messages import ENCODINGS
from starling.node.engine.exchange.pulled import Inbox
from starling.node.engine.exchange.swaps import Swaps
from starling.node.engine.exchange.terms import Form, Terms
from starling.node.engine.exchange.transactions import Pairwise
from starling.node.rpc import calls
from starling.robust.distances import Distances

_SUMS = frozenset({*SWAPPED, EdgeKind.BROADCASTS})
"""What is sent adds up over rounds, and noise on it would."""


def exchange_of(replica: Replica, site: Site) -> Exchange:
    """Return the exchanges of a node, Byzantine ones if its owner configured an attack.

    Raises ConfigError: the manifest, the node's settings or the attack cannot be used.
    """
    opening = site.opening
    check_noise(opening, replica)
    frame.check(opening.manifest, replica.form.numel())
    terms, effort = _terms(replica, opening)
    if not opening.attack:
        return _honest(replica, site, terms, effort)[0]
    adversary = Adversary(opening, replica)
    forged = ForgedVectors(site.vectors, adversary)
    exchange, overheard = _honest(replica, replace(site, vectors=forged), terms, effort)
    return Byzantine(exchange, adversary, forged, overheard)


def check_noise(opening: calls.Open, replica: Replica) -> None:
    """Raise ConfigError if noise shall be on vectors sent, and these are increments, on which it would add up."""
    if not opening.privacy.exchange_noise or replica.kind not in _SUMS:
        return
    raise ConfigError(
        f"privacy.exchange_noise: must be 0 with mix.kind = {opening.manifest.mix.kind!r}, whose messages add up, "
        f"got {opening.privacy.exchange_noise:g}; pet, dsgd, gather and others take it"
    )


def _defence(site: Site) -> Defence:
    """What a node makes of the differences it is shown; an attacker takes them all."""
    opening = site.opening
    if opening.attack or not defended(opening.manifest):
        return Undefended()
    distances = Distances()
    site.vectors.way.measured_by(distances.stepped)
    return ByDistance(distances, site.vectors)


def _terms(replica: Replica, opening: calls.Open) -> tuple[Terms, Effort]:
    manifest, like, kind = opening.manifest, replica.form, replica.kind
    dim, effort, facts = like.numel(), Effort(), parts(replica.layout, like.numel())
    codec = exchange_codec(manifest, like.dtype, facts)
    chosen = selector_facts(manifest.compress, kind)
    select = selection(
        manifest.compress,
        codec.response if kind in SWAPPED else codec.request,
        codec.response,
        facts,
        wishes=chosen.wishes,
        beside=beside(manifest),
        effort=effort,
    )
    wished = kept(manifest.compress.ratio, dim) if chosen.wishes else 0
    form = Form(dim, like.dtype, like.device, replica.layout.dim)
    return Terms(opening.node, manifest.seed, codec, select, wished, form), effort


def _honest(replica: Replica, site: Site, terms: Terms, effort: Effort) -> tuple[Exchange, Overheard]:
    """Return the exchanges of a node, and what an adversary can read of them."""
    compress = site.opening.manifest.compress
    match replica.kind:
        case EdgeKind.GATHERS:
            inbox = Inbox(terms.form)
            return Gathers(replica, site, effort, terms, inbox), Overheard(vectors=inbox.of)
        case EdgeKind.BROADCASTS:
            inbox = Inbox(terms.form)
            return Broadcasts(replica, site, effort, terms, inbox), Overheard(vectors=inbox.of)
        case EdgeKind.DIFFERENCES as kind:
            known = LastKnown(replica) if selector_facts(compress, kind).compares else NothingKnown()
            besides = DifferencesOnly() if replica.remembered is None else Memories(replica.remembered, terms)
            made = Differences(replica, site, terms, besides, known, _defence(site))
            return Pairwise(replica, site, effort, made), Overheard(made.told_values, outcome=made.outcome)
        case kind:
            swaps = Swaps(replica, site, terms, ENCODINGS[kind](terms))
            return Pairwise(replica, site, effort, swaps), Overheard(outcome=swaps.outcome)
