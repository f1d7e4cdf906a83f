"""Which services a manifest asks for, and what each of them is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starling.gossip.mix.facts import FACTS
from starling.gossip.overlay.api import Overlay
from starling.gossip.seeds import derive
from starling.node.config.schema import Manifest
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.api import Meetings
from starling.node.daemon.exchange.budget import Budget
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.pull_service import PulledExchange
from starling.node.daemon.exchange.service import Exchange
from starling.node.daemon.membership.beacon import BeaconService
from starling.node.daemon.membership.neighbors import LinkMap, OverlayNeighbors, RandomNeighbors
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.trust.equivocation import EquivocationDetector
from starling.node.daemon.trust.peer_policy import PeerPolicy
from starling.node.identity import Identity, verify
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.net.api import Network


@dataclass(frozen=True, slots=True)
class Partners:
    """Whom this node meets.

    Args:
        of: round -> peer -> weight.
        link_map: round -> who meets whom, as far as this node knows.
    """

    of: Callable[[int], Mapping[str, float]]
    link_map: Callable[[int], LinkMap]


def meetings(
    *, parts: NodeContext, manifest: Manifest, overlay: Overlay, network: Network, engine: EngineHandle, membership: Membership,
    policy: PeerPolicy,
    report: Reporter, life: int, round: Callable[[], int], salt: Callable[[int], bytes], fresh_inc: Callable[[], int],
    transactions: Transactions,
) -> tuple[Meetings, Partners, EquivocationDetector | None]:  # fmt: skip
    """The exchange service that the manifest asks for, whom it meets in a round, and who witnesses what peers sign.

    Args:
        parts, manifest, overlay, network, engine, membership, judge, report: the node's.
        life: incarnation of this start.
        round: the round under way.
        salt: what mixes into the ranks of a round.
        fresh_inc: a number that no earlier life of an edge has had.
        transactions: where exchanges are kept for a person to look at.
    """
    me = network.peer_id
    near = OverlayNeighbors(overlay, lambda: membership.members, me, salt)
    if not FACTS[manifest.mix.kind].gathers:
        pairwise = Exchange(
            network=network, engine=engine, report=report, manifest=manifest, swarm=parts.swarm, me=me, fresh_inc=fresh_inc,
            may=lambda peer: peer in membership.members, admits=membership.admits, budget=Budget(manifest, parts.config),
            directions=near.directions, noted=policy.noted, transactions=transactions,
        )  # fmt: skip
        return pairwise, Partners(near.links, near.link_map), None
    detector = EquivocationDetector(
        network=network, report=report, swarm=parts.swarm, verify=verify, members=lambda: membership.members,
        life_of=membership.life_of, round=round, seed=_secret_seed(parts.identity, "witness", life),
    )  # fmt: skip
    pulled = PulledExchange(
        network=network, engine=engine, report=report, manifest=manifest, swarm=parts.swarm, life=life, sign=parts.identity.sign,
        verify=verify, life_of=membership.life_of, admits=membership.admits, up_bytes_per_s=parts.config.up_bytes_per_s,
        first=fresh_inc(), witness=detector.heard, noted=policy.noted, transactions=transactions,
    )  # fmt: skip
    if manifest.overlay.kind != "pull":
        return pulled, Partners(near.row, near.link_map), detector
    drawn = RandomNeighbors(
        lambda: membership.members, me, manifest.overlay.k, membership.prefixes, manifest.admission.per_prefix, policy.fine,
        parts.identity.seed, life,
    )  # fmt: skip
    return pulled, Partners(drawn.row, drawn.link_map), detector


def beacon_service(
    parts: NodeContext, manifest: Manifest, network: Network, membership: Membership, report: Reporter, life: int
) -> BeaconService | None:
    """What tells and hears the founder's beacons; None where ranks stay as they are."""
    if not manifest.overlay.rerank_every or manifest.overlay.kind == "pull":
        return None
    return BeaconService(
        network=network, report=report, swarm=parts.swarm, founder=manifest.founder, sign=parts.identity.sign, verify=verify,
        members=lambda: membership.members, every=manifest.overlay.rerank_every, sync_s=manifest.membership.sync_s,
        seed=_secret_seed(parts.identity, "beacon", life),
    )  # fmt: skip


def _secret_seed(identity: Identity, use: str, life: int) -> int:
    return derive(int.from_bytes(identity.seed[:7], "little"), use, life)
