"""A node's state as one immutable StatusSnapshot: a part from each service that exists in the node's phase."""

import math
from typing import Any

import trio
from msgspec import structs

from starling.node.config import attack_consent, descriptions
from starling.node.config.schema import Manifest
from starling.node.daemon.app import Fetching, Joining, Node, OpeningTask, Starting
from starling.node.daemon.membership.contacts import SILENT
from starling.node.daemon.membership.neighbors import LinkMap
from starling.node.daemon.membership.own_key import IDENTITY_TWICE
from starling.node.daemon.running import RunningNode
from starling.node.daemon.training.housekeeping import UNDONE_ROUNDS
from starling.node.net.api import Traffic
from starling.node.status.snapshot import VERSION, PeerStatus, Resources, StatusSnapshot, Transfer

Fields = dict[str, Any]
MAX_TRANSFERS = 16
FORWARD = "forward port {port} of the router to this machine, or invite a member that others can dial, which then relays"


def take_snapshot(node: Node) -> StatusSnapshot:
    """Return the current status; takes under a millisecond for 64 members, so it can be called several times a second."""
    match node.phase:
        case Starting():
            fields = _own(node, None)
        case Joining():
            fields = _own(node, None) | _manifest(node.manifest) | _traffic(node)
        case Fetching(manifest=manifest, transfer=transfer):
            fields = _own(node, None) | _manifest(manifest) | _traffic(node)
            fields |= {"activity": "fetching the model that the swarm begins with", "transfers": transfer.downloads.incoming}
        case OpeningTask(context=context, engine=engine):
            fields = _own(node, engine.pid) | _manifest(context.manifest) | _traffic(node)
            fields["activity"] = engine.activity
        case RunningNode(context=context, engine=engine) as running:
            fields = _own(node, engine.pid) | _manifest(context.manifest) | _traffic(node) | _running(node, running)
    problem = "; ".join(filter(None, (attack_consent.warning(node.setup.config), _problem(node))))
    return StatusSnapshot(problem=problem or None, **fields)


def _own(node: Node, engine_pid: int | None) -> Fields:
    """Return the fields that exist in every phase."""
    setup, progress, now = node.setup, node.progress, trio.current_time()
    figures = structs.asdict(progress.figures)
    gpu = {name: figures.pop(name) for name in Resources.__struct_fields__ if name in figures}
    return (
        figures
        | _same(progress, "state", "round", "joined_late")
        | _same(progress.evaluated, "value", "others", "best", "best_round", "alone")
        | {
            "version": VERSION,
            "peer": setup.identity.peer_id,
            "swarm": setup.swarm,
            "name": "",
            "time_s": setup.machine.unix_time(),
            "uptime_s": now - node.began,
            "byzantine": bool(setup.config.attack),
            "steps_per_s": progress.speed.per_busy_s(),
            "paced_per_s": progress.speed.per_s(now) if progress.state == "training" else progress.speed.per_s(),
            "delta": setup.config.privacy.delta if progress.figures.epsilon is not None else None,
            "value_round": progress.evaluated.round,
            "loss_curve": progress.losses.points,
            "value_curve": progress.evaluated.curve.points,
            "distance_curve": progress.distances.points,
            "waited": progress.waits.share,
            "waited_for": progress.waits.longest,
            "events": node.events.recent,
            "transactions": node.transactions.ended,
            "up_limit_bytes_per_s": setup.limits.up_bytes_per_s or None,
            "down_limit_bytes_per_s": setup.limits.down_bytes_per_s or None,
            "resources": structs.replace(setup.machine.sensors.usage(engine_pid), **gpu),
        }
    )


def _manifest(manifest: Manifest | None) -> Fields:
    if manifest is None:
        return {}
    kinds = {"task": manifest.task.kind, "algorithm": manifest.mix.kind, "overlay": manifest.overlay.kind}
    said = {"method": descriptions.method(manifest), "agreed": descriptions.sections(manifest)}
    return kinds | said | {"name": manifest.name, "rounds": manifest.pace.rounds}


def _traffic(node: Node) -> Fields:
    assert node.network is not None
    total, uptime = node.network.total_traffic, trio.current_time() - node.began
    return _same(total, "bytes_sent", "bytes_received") | {
        "addresses": node.network.addresses,
        "up_bytes_per_s": total.bytes_sent / uptime if uptime > 1.0 else None,
        "down_bytes_per_s": total.bytes_received / uptime if uptime > 1.0 else None,
    }


def _running(node: Node, running: RunningNode) -> Fields:
    links = _link_map(node, running)
    return _same(running.opened, "metric", "higher_is_better", "parameters", "device") | {
        "seat": running.role.seat(),
        "rejoined": running.opened.resumed,
        "engine_restarts": running.engine.restarts,
        "activity": running.engine.activity,
        "members": len({*running.membership.members, running.context.me}),  # also once it has left
        "bootstrap": running.around.to_share(),
        "reachability": running.around.reachability.state,
        "relays": running.context.network.relays,
        "relaying": len(running.context.network.circuits),
        "behind": _behind(node, running.exchange.lead),
        "payload_bytes": running.exchange.payload_bytes,
        "exchanges": running.exchange.stats,
        "peers": _peers(node, running),
        "transfers": _transfers(node, running),
        "ranks": links.ranks,
        "links": links.links,
    }


def _behind(node: Node, lead: int) -> int:
    """Return how many rounds others are ahead; a single one is none, as at any time somebody begins a round first."""
    ahead = lead - (node.progress.round if node.progress.current is None else node.progress.current)
    return ahead if node.progress.state == "training" and ahead > 1 else 0


def _transfers(node: Node, running: RunningNode) -> tuple[Transfer, ...]:
    """Return models being fetched, and exchanges under way."""
    under_way = (*running.begun.transfer.downloads.incoming, *node.transactions.under_way)
    return tuple(sorted(under_way, key=lambda each: -each.seconds)[:MAX_TRANSFERS])


def _link_map(node: Node, running: RunningNode) -> LinkMap:
    """Return the overlay of the current round."""
    current = node.progress.current
    return running.pace.neighbors.link_map(node.progress.round if current is None else current)


def _problem(node: Node) -> str | None:
    """Return the most important problem, with the next command to try."""
    match node.phase:
        case Joining() if node.manifest is None:
            return "no bootstrap peer gives the manifest, `starling logs` says why; ask a member for a fresh invite: `starling join INVITE`"
        case RunningNode() as running:
            members = len(running.membership.members)
            if running.membership.is_twice:
                return IDENTITY_TWICE
            if running.around.contacts.ignored:
                return SILENT
            if running.around.is_cut_off:
                port = node.network.port if node.network is not None else None
                return f"no member can be dialled, this one neither: {FORWARD.format(port=port)}"
            if node.progress.state == "waiting":
                needed, here = running.context.manifest.pace.quorum, len(running.role.members.roster)
                whom = running.role.members.whom
                return f"waiting for {needed} {whom}, {here} here; invite others with the string `starling invite` prints"
            if running.training.house.cannot_save:
                return "checkpoints cannot be written; free some disk space"
            if node.progress.state == "training" and members == 1:
                return "no other member is here, this node trains alone; invite others with the string `starling invite` prints"
            if why := running.training.paused:
                return f"paused, as {why}: it answers its peers and does no local steps; go on with `starling resume`"
            if running.training.house.undone_rounds >= UNDONE_ROUNDS:
                return "every local step is undone, as its numbers are not finite; look at the data with `starling task check`"
            if node.progress.few_steps:
                return f"{node.progress.few_steps}; `starling peers` shows in which rounds they are"
            return running.exchange.slow or None
    return None


def _peers(node: Node, running: RunningNode) -> tuple[PeerStatus, ...]:
    now, membership, exchange = trio.current_time(), running.membership, running.exchange
    network = running.context.network
    traffics = network.traffic  # each call makes a new dict of thousands of peers
    rows = []
    for peer, member in sorted(membership.table.items()):
        if peer == running.context.me:
            continue
        traffic = traffics.get(peer, Traffic())
        standing = node.policy.standing(peer)
        state = {"quarantine": "quarantined", "ban": "banned"}.get(standing.state, member.status)
        last_frame = membership.last_frame(peer)
        rows.append(
            PeerStatus(
                peer=peer,
                state=state,  # type: ignore[arg-type]
                edge=peer in exchange.edges and node.policy.allows(peer),
                round=exchange.round_of(peer),
                rtt_s=membership.rtt(peer),
                **_same(traffic, "bytes_sent", "bytes_received"),
                committed=exchange.committed(peer),
                faults=node.events.faults_of(peer),
                last_seen_s=now - last_frame if last_frame is not None else None,
                addresses=member.record.addresses,
                standing=standing.state,
                shut_out_s=_left_s(standing.until, now),
                **_same(standing, "score", "contribution", "staleness", "clipped", "trusted", "why"),
                inviter=membership.origins.inviter_of(peer) or "",
                way=network.way(peer) or "",
                relay=network.relay_of(peer),
            )
        )
    banned = [it for it in node.policy.reputation.decisions(now) if it.kind == "ban" and it.peer not in membership.table]
    rows += [PeerStatus(it.peer, "banned", standing="ban", shut_out_s=_left_s(it.until, now), why=it.why) for it in banned]
    return tuple(rows)


def _same(source: object, *names: str) -> Fields:
    """Return the attributes that a status has under the same names."""
    return {name: getattr(source, name) for name in names}


def _left_s(until: float, now: float) -> float | None:
    return until - now if math.isfinite(until) else None
