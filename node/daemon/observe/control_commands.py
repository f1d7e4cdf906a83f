"""Commands of a node's owner over its control socket."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import trio

from starling.gossip.errors import GossipError
from starling.node.config.parts import convert, plainly
from starling.node.config.schema import NodeConfig
from starling.node.daemon.app import Node
from starling.node.daemon.trust.peer_policy import PeerPolicy
from starling.node.rpc import calls


async def carry_out(node: Node, op: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Execute leave, stop, pause, resume, limits, evaluate, export, revoke, ban, unban or trust -> the fields of the answer.

    `fields`: `path` for export, and `best` for the best model so far; `peer` for the last four; for ban optionally `for_s` and `why`; for
    limits those to change, as in NodeConfig. Raises GossipError: not possible now.
    """
    match op:
        case "leave" | "stop":
            node.stop()
            return {}
        case "pause" | "resume":
            node.running.training.pause("its owner paused it" if op == "pause" else "")
            return {"paused": op == "pause"}
        case "limits":
            return await _limit(node, fields)
        case "ban" | "unban" | "trust":
            return _decide(node.policy, op, fields)
        case "revoke":
            return {"removed": list(node.running.membership.revoke(str(fields["peer"])))}
        case "evaluate":
            running = node.running
            await running.training.house.evaluation.evaluate()
            last = node.progress.evaluated
            return {"metric": running.opened.metric, "value": last.value, "round": last.round, "others": dict(last.others)}
        case "export":
            path = Path(str(fields["path"]))
            if not path.is_absolute():
                raise GossipError("export: path must be absolute")
            reply = await node.running.engine.call(calls.Save(str(path), best=fields.get("best") is True))
            if isinstance(reply, calls.Refused):
                raise GossipError(f"export: cannot write {path}: {reply.reason}" if reply.kind == "disk" else reply.reason)
            return {"path": str(path)}
        case _:
            raise GossipError(f"unknown command {op!r}")


async def _limit(node: Node, fields: Mapping[str, object]) -> dict[str, object]:
    """Change some limits, all of them or none -> those in force now."""
    limits = node.setup.limits
    threads = limits.threads
    if unknown := sorted(fields.keys() - asdict(limits).keys()):
        raise GossipError(f"limits: {plainly(unknown[0])} is not one of them; see `starling limits --help`")
    if fields:
        running, wanted = node.running, convert(fields, NodeConfig)
        for name in fields:
            setattr(limits, name, getattr(wanted, name))
        running.context.network.cap(limits.up_bytes_per_s, limits.down_bytes_per_s)
        if limits.threads != threads:
            await running.engine.limit(limits.threads)
        text = ", ".join(f"{name} = {value}" for name, value in asdict(limits).items())
        node.events.event(
            "limits_changed",
            f"in force now: {text}",
            up_bytes_per_s=limits.up_bytes_per_s,
            down_bytes_per_s=limits.down_bytes_per_s,
            threads=limits.threads,
        )
    return asdict(limits)


def _decide(policy: PeerPolicy, op: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Apply the owner's decision about a peer."""
    given = str(fields.get("peer", ""))
    match op:
        case "ban":
            for_s = fields.get("for_s", math.inf)
            if not isinstance(for_s, float | int) or not for_s > 0:
                raise GossipError(f"ban: for_s must be > 0, got {for_s!r}")
            peer = policy.ban(given, float(for_s), str(fields.get("why", "")))
        case "unban":
            peer = policy.unban(given)
        case _:
            peer = policy.trust(given)
    standing = policy.standing(peer)
    left_s = standing.until - trio.current_time()
    return {
        "peer": peer,
        "standing": standing.state,
        "trusted": standing.trusted,
        "why": standing.why,
        "shut_out_s": left_s if math.isfinite(left_s) else None,
    }
