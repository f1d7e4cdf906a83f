"""Results of a demo, as `starling demo --json` prints it. A leaf."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from starling.node.status.snapshot import Exchanges

NodeState = Literal["done", "left", "killed", "banned", "failed"]


class DemoBan(msgspec.Struct, frozen=True, kw_only=True):
    """The honest nodes just before `--ban-at`."""

    round: int | None
    after_s: float
    mean: float | None
    min: float | None


class DemoAlone(msgspec.Struct, frozen=True, kw_only=True):
    """The lone node, which trained on the data of node 0 without exchanges."""

    rounds: int
    local_steps: int
    value: float | None


class DemoNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a demo. A node that never answered has only the first three fields."""

    peer: str
    state: NodeState
    byzantine: bool
    rounds: int | UnsetType = UNSET
    local_steps: int | UnsetType = UNSET
    value: float | UnsetType | None = UNSET
    bytes_sent: int | UnsetType = UNSET
    bytes_received: int | UnsetType = UNSET
    exchanges: Exchanges | UnsetType = UNSET
    rejoined: bool | UnsetType = UNSET
    """It resumed the state of an earlier start."""
    joined_late: bool | UnsetType = UNSET


class DemoSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """`starling demo --json`. mean, min, max and consensus_distance are of the honest nodes that are done."""

    swarm: str
    wall_s: float
    rounds: int
    metric: str
    mean: float | None
    min: float | None
    max: float | None
    ban: DemoBan | None
    consensus_distance: float | None
    bytes_per_exchange: float | None
    """Payload that one node sends in one exchange."""
    dense_bytes: int
    """Bytes of the uncompressed vector."""
    nodes: tuple[DemoNode, ...]
    alone: DemoAlone | None = None
    """Null where none was asked for, or it did not get as far."""
