"""A node's state as one immutable StatusSnapshot."""

from __future__ import annotations

import math

import trio
from msgspec import structs

from starling.node.config import attack_consent
from starling.node.daemon.app import Node
from starling.node.daemon.membership.neighbors import LinkMap, own_links
from starling.node.net.api import Network, Traffic
from starling.node.status.snapshot import VERSION, Exchanges, PeerStatus, StatusSnapshot


def take_snapshot(node: Node) -> StatusSnapshot:
    """The status of this moment; cheap enough for four times a second."""
    now = trio.current_time()
    parts, progress, network = node.parts, node.progress, node.network
    manifest = node.manifest
    opened = node.engine.opened if node.engine is not None else None
    uptime, picture = now - node.began, _link_map(node)
    used = parts.usage(node.engine.pid if node.engine is not None else None)
    sent, received = frame_bytes(network)
    return StatusSnapshot(
        version=VERSION,
        peer=parts.identity.peer_id,
        swarm=parts.swarm,
        name=manifest.name if manifest is not None else "",
        time_s=parts.unix_time(),
        uptime_s=uptime,
        state=progress.state,
        problem="; ".join(filter(None, (attack_consent.warning(parts.config), _problem(node)))) or None,
        byzantine=bool(parts.config.attack),
        task=manifest.task.kind if manifest is not None else "",
        metric=node.metric,
        higher_is_better=opened.higher_is_better if opened is not None else True,
        algorithm=manifest.mix.kind if manifest is not None else "",
        overlay=manifest.overlay.kind if manifest is not None else "",
        parameters=opened.parameters if opened is not None else None,
        device=opened.device if opened is not None else None,
        round=progress.round,
        rounds=manifest.pace.rounds if manifest is not None else 0,
        local_steps=progress.local_steps,
        steps_per_s=progress.steps_per_s,
        loss=progress.loss,
        value=progress.value,
        value_round=progress.value_round,
        epsilon=progress.epsilon,
        delta=parts.config.privacy.delta if progress.epsilon is not None else None,
        members=len(node.membership.members) if node.membership is not None else 1,
        bytes_sent=sent,
        bytes_received=received,
        payload_bytes=node.exchange.payload_bytes if node.exchange is not None else 0,
        up_bytes_per_s=sent / uptime if uptime > 1.0 else None,
        down_bytes_per_s=received / uptime if uptime > 1.0 else None,
        exchanges=node.exchange.stats if node.exchange is not None else Exchanges(),
        engine_restarts=node.engine.restarts if node.engine is not None else 0,
        rejoined=opened.resumed if opened is not None else False,
        joined_late=node.joined_late,
        addresses=network.addresses if network is not None else (),
        peers=_peers(node, now),
        loss_curve=progress.losses.points,
        value_curve=progress.values.points,
        events=node.report.events,
        up_limit_bytes_per_s=parts.config.up_bytes_per_s or None,
        down_limit_bytes_per_s=parts.config.down_bytes_per_s or None,
        resources=structs.replace(used, gpu=progress.gpu, gpu_memory_bytes=progress.gpu_memory_bytes),
        paced_per_s=progress.paced.per_s(now) if progress.state == "training" else progress.paced.per_s(),
        distance=progress.distance,
        distance_curve=progress.distances.points,
        ranks=picture.ranks,
        links=picture.links,
        transactions=node.transactions.ended,
        activity=node.engine.activity if node.engine is not None else "",
    )


def _link_map(node: Node) -> LinkMap:
    """Who meets whom in the round under way."""
    if node.membership is None or node.partners is None:
        return LinkMap()
    if node.training is not None and node.training.edges is not None:
        return own_links(node.membership.members, node.parts.identity.peer_id, node.training.edges.peers)
    under_way = node.progress.under_way
    return node.partners.link_map(node.progress.round if under_way is None else under_way)


def frame_bytes(network: Network | None) -> tuple[int, int]:
    """Sent to and received from all peers; 0 before there is a network."""
    total = network.total_traffic if network is not None else Traffic()
    return total.bytes_sent, total.bytes_received


def _problem(node: Node) -> str | None:
    """The first thing a person should know."""
    members = len(node.membership.members) if node.membership is not None else 1
    if node.progress.state == "joining" and node.manifest is None:
        return "no bootstrap peer answers; ask a member for a fresh invite: `starling join INVITE`"
    if node.progress.state == "waiting" and node.manifest is not None:
        return f"waiting for {node.manifest.pace.quorum} members, {members} here; invite others with the string `starling invite` prints"
    if node.training is not None and node.training.cannot_save:
        return "checkpoints cannot be written; free some disk space"
    if node.progress.state == "training" and members == 1:
        return "nobody else is here, this node trains alone; invite others with the string `starling invite` prints"
    return None


def _peers(node: Node, now: float) -> tuple[PeerStatus, ...]:
    if node.membership is None or node.network is None or node.exchange is None:
        return ()
    rows = []
    traffics = node.network.traffic  # made anew at each look, of thousands of peers
    for peer, member in sorted(node.membership.table.items()):
        if peer == node.parts.identity.peer_id:
            continue
        traffic = traffics.get(peer)
        standing = node.policy.standing(peer)
        state = {"quarantine": "quarantined", "ban": "banned"}.get(standing.state, member.status)
        left_s = standing.until - now
        heard = node.membership.last_heard(peer)
        rows.append(
            PeerStatus(
                peer=peer,
                state=state,  # type: ignore[arg-type]
                edge=peer in node.exchange.edges and node.policy.fine(peer),
                round=node.exchange.round_of(peer),
                rtt_s=node.membership.rtt(peer),
                bytes_sent=traffic.bytes_sent if traffic is not None else 0,
                bytes_received=traffic.bytes_received if traffic is not None else 0,
                committed=node.exchange.committed(peer),
                faults=node.report.faults_of(peer),
                last_seen_s=now - heard if heard is not None else None,
                addresses=member.record.addresses,
                standing=standing.state,
                score=standing.score,
                contribution=standing.contribution,
                staleness=standing.staleness,
                clipped=standing.clipped,
                trusted=standing.trusted,
                shut_out_s=left_s if math.isfinite(left_s) else None,
                why=standing.why,
                inviter=node.membership.inviter_of(peer) or "",
            )
        )
    return (*rows, *_shut_out(node, now))


def _shut_out(node: Node, now: float) -> list[PeerStatus]:
    """Who is banned and no longer a member."""
    assert node.membership is not None
    rows = []
    for it in node.policy.reputation.decisions(now):
        if it.kind == "ban" and it.peer not in node.membership.table:
            left_s = it.until - now if math.isfinite(it.until) else None
            rows.append(PeerStatus(it.peer, "banned", standing="ban", shut_out_s=left_s, why=it.why))
    return rows
