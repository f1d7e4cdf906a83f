"""Choose the exchanges of a replica by the kind of its edges: the only place that asks for the kind."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from starling.gossip.compress.budget import Effort
from starling.gossip.compress.select.coordinates import kept
from starling.gossip.errors import ConfigError
from starling.gossip.mix.kinds import SWAPPED, EdgeKind
from starling.gossip.replica import Replica
from starling.node.config import frame_limits
from starling.node.config.robustness import defended
from starling.node.engine.compression import exchange_codec, extra_size, parts, selection, selector_facts
from starling.node.engine.exchange.adversary import Adversary
from starling.node.engine.exchange.api import Exchange, Machine, Site
from starling.node.engine.exchange.attachments import DifferencesOnly, Memories
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
from starling.robust.progress import Beginning, Unwatched, Watched

_SUMS = frozenset({*SWAPPED, EdgeKind.BROADCASTS})
"""Mixing algorithms that send increments, on which noise would add up."""


def exchange_of(replica: Replica, site: Site) -> Exchange:
    """Return the exchanges of a node, Byzantine ones if its owner configured an attack.

    Raises ConfigError: the manifest, the node's settings or the attack cannot be used.
    """
    open_request = site.open_request
    check_noise(open_request, replica)
    frame_limits.check(open_request.manifest, replica.form.numel())
    terms, effort = _terms(replica, open_request)
    if not open_request.attack:
        return _honest(replica, site, terms, effort)[0]
    adversary = Adversary(open_request, replica)
    forged = ForgedVectors(site.vectors, adversary)
    exchange, overheard = _honest(replica, replace(site, vectors=forged), terms, effort)
    return Byzantine(exchange, adversary, forged, overheard)


def check_noise(open_request: calls.Open, replica: Replica) -> None:
    """Raise ConfigError if noise would be on sent increments, where it would add up."""
    if not open_request.privacy.exchange_noise or replica.kind not in _SUMS:
        return
    raise ConfigError(
        f"privacy.exchange_noise: must be 0 with mix.kind = {open_request.manifest.mix.kind!r}, whose messages add up, "
        f"got {open_request.privacy.exchange_noise:g}; pet, dsgd, gather and others take it"
    )


def _defence(site: Site, begin: Callable[[], Beginning], *, whole: bool) -> Defence:
    """Return the defence against distant models; an attacker has none, and takes every difference.

    `whole`: vectors are whole models, of which losses can be computed.
    """
    open_request = site.open_request
    if open_request.attack or not defended(open_request.manifest):
        return Undefended()
    distances = Distances()
    site.vectors.drift.measured_by(distances.stepped)
    made = ByDistance(distances, site.vectors, begin, site.losses if whole else None)
    site.vectors.examine = made.examine
    return made


def _terms(replica: Replica, open_request: calls.Open) -> tuple[Terms, Effort]:
    manifest, like, kind = open_request.manifest, replica.form, replica.kind
    dim, effort, facts = like.numel(), Effort(), parts(replica.layout, like.numel())
    codec = exchange_codec(manifest, like.dtype, facts)
    chosen = selector_facts(manifest.compress, kind)
    select = selection(
        manifest.compress,
        codec.response if kind in SWAPPED else codec.request,
        codec.response,
        facts,
        wishes=chosen.wishes,
        extra_size=extra_size(manifest),
        effort=effort,
    )
    wished = kept(manifest.compress.ratio, dim) if chosen.wishes else 0
    form = Form(dim, like.dtype, like.device, replica.layout.dim)
    return Terms(open_request.node, manifest.seed, codec, select, wished, form), effort


Made = tuple[Exchange, Overheard]
"""The exchanges of a node, and what an adversary can read of them."""


def _honest(replica: Replica, site: Site, terms: Terms, effort: Effort) -> Made:
    return _MAKERS.get(replica.kind, _swaps)(replica, site, terms, effort)


def _gathers(replica: Replica, site: Site, terms: Terms, effort: Effort) -> Made:
    inbox = Inbox(terms.form)
    return Gathers(replica, site, effort, terms, inbox), Overheard(vectors=inbox.of)


def _broadcasts(replica: Replica, site: Site, terms: Terms, effort: Effort) -> Made:
    inbox = Inbox(terms.form)
    return Broadcasts(replica, site, effort, terms, inbox), Overheard(vectors=inbox.of)


def _differences(replica: Replica, site: Site, terms: Terms, effort: Effort) -> Made:
    compares = selector_facts(site.open_request.manifest.compress, replica.kind).compares
    watched = partial(_watched, replica, site.machine)
    known, begin = (LastKnown(replica), Unwatched) if compares else (NothingKnown(), watched)
    attachments = DifferencesOnly() if replica.remembered is None else Memories(replica.remembered, terms)
    made = Differences(replica, site, terms, attachments, known, _defence(site, begin, whole=len(replica.x) == terms.form.dim))
    return Pairwise(replica, site, effort, made), Overheard(made.sent_values, outcome=made.outcome)


def _watched(replica: Replica, machine: Machine) -> Watched:
    return Watched(replica.shared(), machine.uniform)


def _swaps(replica: Replica, site: Site, terms: Terms, effort: Effort) -> Made:
    swaps = Swaps(replica, site, terms, ENCODINGS[replica.kind](terms))
    return Pairwise(replica, site, effort, swaps), Overheard(outcome=swaps.outcome)


_MAKERS: Mapping[EdgeKind, Callable[[Replica, Site, Terms, Effort], Made]] = MappingProxyType(
    {EdgeKind.GATHERS: _gathers, EdgeKind.BROADCASTS: _broadcasts, EdgeKind.DIFFERENCES: _differences}
)
"""By the kind of edge; all others swap messages."""
