"""Choose once, from the manifest, a node's exchanges, neighbors and loop. Nothing else asks for the pace.

steps, pairwise   rounds of exchanges on links; they may overlap with local steps
steps, pulled     rounds in which vectors are asked for and combined by a rule
clock, pairwise   one exchange a slot
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.overlay.api import LastingEdges, Overlay
from starling.gossip.overlay.chosen import EVERY, ChosenEdges
from starling.gossip.overlay.sticky import DEGREE, StickyEdges
from starling.gossip.seeds import derive
from starling.node.catalogues import PACES
from starling.node.config.overlay import overlay_of
from starling.node.config.schema import Manifest
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.facts import Subscriber
from starling.node.daemon.exchange.pairwise import PairwiseExchange
from starling.node.daemon.exchange.pull_service import PulledExchange, Signing
from starling.node.daemon.exchange.rounds import RoundExchange
from starling.node.daemon.exchange.visits import VisitExchange
from starling.node.daemon.membership.neighbors import (
    Caps,
    LastingNeighbors,
    NamedNeighbors,
    Neighbors,
    OverlayNeighbors,
    RandomNeighbors,
    secret_draws,
)
from starling.node.daemon.surroundings import Surroundings
from starling.node.daemon.training.catch_up import CatchUp, Jumps
from starling.node.daemon.training.grants import Grants
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.daemon.training.late_join import Joining, LateJoin, PeerModels
from starling.node.daemon.training.local_work import Role
from starling.node.daemon.training.loop import RoundLoop
from starling.node.daemon.training.slots import Contacts, LastingContacts, ScheduledContacts, SlotsLoop
from starling.node.daemon.training.steps import Links, MeasuredBeforeMix, Overlapping, Rounds, Sequential, StepsLoop
from starling.node.daemon.trust.equivocation import EquivocationDetector


@dataclass(frozen=True, slots=True)
class Services:
    """Services that every pace uses."""

    context: NodeContext
    role: Role
    around: Surroundings
    subscribers: Sequence[Subscriber]
    """Receive facts about exchanges."""
    house: Housekeeping
    models: PeerModels

    @property
    def overlay(self) -> Overlay:
        """Return the manifest's overlay."""
        return overlay_of(self.context.manifest)

    def grants(self) -> Grants:
        """Return what grants rounds their local steps."""
        context = self.context
        role, progress = self.role, self.house.progress
        return Grants(context.manifest.pace, self.overlay, role.members, role.work, progress, context.report)

    def catch_up(self, exchange: PairwiseExchange | PulledExchange, forget: Callable[[], object] = lambda: None) -> CatchUp:
        """Return what installs peers' models."""
        pace = self.context.manifest.pace
        return CatchUp(self.models.fetch, self.house.progress, pace.ramp_rounds, exchange.reset_all, forget)

    def fresh(self, number: int) -> int:
        """Return a number that no earlier incarnation of an edge is likely to have had."""
        return derive(number, "inc", self.context.me, int(self.context.unix_time() * 1e6)) >> 3

    def edge_numbers(self) -> Callable[[], int]:
        """Return what numbers new incarnations of edges."""
        numbers = count(1)
        return lambda: self.fresh(next(numbers))


@dataclass(frozen=True, slots=True)
class Pace:
    """The parts of a round that depend on the pace."""

    exchange: PairwiseExchange | PulledExchange
    neighbors: Neighbors
    joining: Joining
    loop: RoundLoop
    equivocation: EquivocationDetector | None = None
    """None: models are not signed."""


def pace_of(services: Services) -> Pace:
    """Return how a node of this manifest does rounds."""
    return PACES[services.context.manifest.pace.kind](services)


def steps(services: Services) -> Pace:
    """Return rounds in which all members take part."""
    facts = MIXERS.facts(services.context.manifest.mix.kind, trusted=True)
    return _pulled_steps(services) if facts.gathers or facts.broadcasts else _pairwise_steps(services)


def _pairwise_steps(services: Services) -> Pace:
    pace, grants, named = services.context.manifest.pace, services.grants(), _named(services)
    exchange = RoundExchange(
        services.context,
        services.role.members,
        services.edge_numbers(),
        services.around.policy.noted,
        services.subscribers,
        named.directions,
    )
    sequential = Sequential(Links(named, services.around.beacons), exchange, grants)
    rounds = Overlapping(sequential, exchange, pace) if pace.overlap else sequential
    return _steps(services, grants, rounds, exchange, named, left_behind=exchange.left_behind)


def _pulled_steps(services: Services) -> Pace:
    context, around, section = services.context, services.around, services.context.manifest.overlay
    members, progress = around.membership, services.house.progress
    equivocation = EquivocationDetector(context, members, lambda: progress.round)
    exchange = PulledExchange(
        context, members, Signing(services.fresh(1), equivocation.attested), around.policy.noted, services.subscribers
    )
    neighbors: Neighbors = (
        RandomNeighbors(
            lambda: members.roster,
            context.me,
            section.k,
            Caps(context.manifest.admission.per_prefix, members.origins.prefixes),
            around.may_use,
            secret_draws(context.identity.seed, context.incarnation),
        )
        if section.kind == "pull"
        else OverlayNeighbors(
            services.overlay, lambda: members.roster, context.me, around.beacons.salt, rows=True, may_meet=around.may_meet
        )
    )
    grants = services.grants()
    rounds = Sequential(Links(neighbors, services.around.beacons), exchange, grants)
    return _steps(services, grants, rounds, exchange, neighbors, equivocation=equivocation)


def _steps(
    services: Services,
    grants: Grants,
    rounds: Rounds,
    exchange: PairwiseExchange | PulledExchange,
    neighbors: Neighbors,
    *,
    left_behind: Callable[[int, int], int] = lambda here, _reach: here,
    equivocation: EquivocationDetector | None = None,
) -> Pace:
    context, house = services.context, services.house
    pace, catch_up = context.manifest.pace, services.catch_up(exchange, rounds.forget)
    if context.config.evaluate_alone:
        rounds = MeasuredBeforeMix(rounds, pace, context.engine, house.progress)
    jumps = Jumps(catch_up, pace, left_behind, services.models.outer.repair)
    loop = StepsLoop(pace, rounds, grants, jumps, house)
    return Pace(exchange, neighbors, LateJoin(catch_up, services.models, house), loop, equivocation)


def clock(services: Services) -> Pace:
    """Return slots of time with one exchange each."""
    context, members, house, named = services.context, services.role.members, services.house, _named(services)
    manifest, edges = context.manifest, _lasting(context.manifest, context.swarm.encode())
    exchange = VisitExchange(context, members, services.edge_numbers(), services.around.policy.noted, services.subscribers, edges)
    neighbors: Neighbors = named
    contacts: Contacts = ScheduledContacts(exchange, named)
    if manifest.overlay.kind == "sticky":
        neighbors = LastingNeighbors(lambda: services.around.membership.members, context.me, edges, manifest.mix.theta)
        contacts = LastingContacts(context.me, exchange, edges, members, services.around.may_meet)
    loop = SlotsLoop(exchange, contacts, members, services.around.clock, house)
    return Pace(exchange, neighbors, LateJoin(services.catch_up(exchange), services.models, house), loop)


def _named(services: Services) -> NamedNeighbors:
    """Return the neighbors that the overlay names, of this node or of its crew."""
    me, members = services.context.me, services.role.members
    plain = OverlayNeighbors(services.overlay, lambda: members.roster, me, services.around.beacons.salt, may_meet=services.around.may_meet)
    return services.role.named(plain)


def _lasting(manifest: Manifest, salt: bytes) -> LastingEdges:
    """Return the edges of a node in pace "clock"; an overlay that is a schedule names neighbors itself, and these say who is accepted."""
    params = manifest.overlay.params()
    degree = params.get("degree", DEGREE)
    return ChosenEdges(degree, salt, params["choose_every"] or EVERY) if params.get("choose") == "fast" else StickyEdges(degree, salt)
