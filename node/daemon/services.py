"""Which exchange and beacon services a manifest asks for."""

from __future__ import annotations

from itertools import count

from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.sticky import StickyEdges
from starling.gossip.seeds import derive
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.api import Meetings
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.pull_service import PulledExchange
from starling.node.daemon.exchange.service import Exchange
from starling.node.daemon.membership.beacon import BeaconService, MemberOrder
from starling.node.daemon.membership.neighbors import Neighbors, OverlayNeighbors, RandomNeighbors
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.progress import Progress
from starling.node.daemon.trust.equivocation import EquivocationDetector
from starling.node.daemon.trust.peer_policy import PeerPolicy


def exchange_services(
    context: NodeContext, membership: Membership, overlay: Overlay, order: MemberOrder, policy: PeerPolicy, progress: Progress,
    transactions: Transactions,
) -> tuple[Meetings, Neighbors, EquivocationDetector | None]:  # fmt: skip
    """The exchange service of the manifest's mixing algorithm, its neighbors by round, and where models are signed, the detector.

    Args:
        context: the node's.
        membership: who is here.
        overlay: built from the manifest.
        order: ranks of the members.
        policy: notes how exchanges ended.
        progress: for the current round.
        transactions: records exchanges for the status.
    """
    me, manifest = context.me, context.manifest
    numbers = count(1)

    def fresh_inc() -> int:
        """A number that no earlier incarnation of an edge is likely to have had."""
        return derive(next(numbers), "inc", me, int(context.unix_time() * 1e6)) >> 3

    gathers = MIXERS.facts(manifest.mix.kind, trusted=True).gathers
    neighbors = OverlayNeighbors(overlay, lambda: membership.members, me, order.salt, rows=gathers)
    if not gathers:
        sticky = StickyEdges(manifest.overlay.degree, context.swarm.encode()) if manifest.pace.kind == "clock" else None
        pairwise = Exchange(
            context, membership, fresh_inc, directions=neighbors.directions, noted=policy.noted, transactions=transactions,
            sticky=sticky,
        )  # fmt: skip
        return pairwise, neighbors, None
    detector = EquivocationDetector(context, membership, progress)
    pulled = PulledExchange(
        context, membership, first=fresh_inc(), witness=detector.attested, noted=policy.noted, transactions=transactions,
    )  # fmt: skip
    if manifest.overlay.kind != "pull":
        return pulled, neighbors, detector
    drawn = RandomNeighbors(
        lambda: membership.members, me, manifest.overlay.k, membership.prefixes, manifest.admission.per_prefix, policy.allows,
        context.identity.seed, context.incarnation,
    )  # fmt: skip
    return pulled, drawn, detector


def beacon_service(context: NodeContext, membership: Membership) -> BeaconService | None:
    """The service for the founder's beacons; None where ranks never change."""
    overlay = context.manifest.overlay
    return BeaconService(context, membership) if overlay.rerank_every and overlay.kind != "pull" else None
