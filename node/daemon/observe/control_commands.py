"""What an owner can tell a running node over its control socket."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import trio

from starling.gossip.errors import GossipError
from starling.node.daemon.app import Node
from starling.node.daemon.trust.peer_policy import PeerPolicy
from starling.node.rpc import calls


async def carry_out(node: Node, op: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Do what the owner says.

    Args:
        node: the running node.
        op: leave, stop, evaluate, export, revoke, ban, unban or trust.
        fields: `path` for export; `peer` for the last four; for ban `for_s` and `why` too, if wanted.

    Raises:
        GossipError: it cannot be done now.
    """
    if op in {"leave", "stop"}:
        node.stop()
        return {}
    if op == "revoke" and node.membership is not None:
        return {"removed": list(node.membership.revoke(str(fields.get("peer", ""))))}
    if op in {"ban", "unban", "trust"}:
        return _decide(node.policy, op, fields)
    if node.training is None or node.engine is None:
        raise GossipError("the node is still starting")
    if op == "evaluate":
        await node.training.evaluate()
        return {"metric": node.metric, "value": node.progress.value, "round": node.progress.value_round}
    if op == "export":
        path = Path(str(fields.get("path", "")))
        if not path.is_absolute():
            raise GossipError("export: path must be absolute")
        reply = await node.engine.call(calls.Save(str(path)))
        if isinstance(reply, calls.Refused):
            raise GossipError(reply.reason)
        return {"path": str(path)}
    raise GossipError(f"unknown command {op!r}")


def _decide(policy: PeerPolicy, op: str, fields: Mapping[str, object]) -> dict[str, object]:
    """The owner's word on a peer."""
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
        "peer": peer, "standing": standing.state, "trusted": standing.trusted, "why": standing.why,
        "shut_out_s": left_s if math.isfinite(left_s) else None,
    }  # fmt: skip
