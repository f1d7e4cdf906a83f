"""What `--json` prints, command by command. `version` is raised when a reader of the one before would misread; new keys do not raise it.

JSON Schemas of all of them are in docs/schemas, made by

    python -m starling.node.cli.schemas docs/schemas

`status` and each line of `status --watch` is a `node.status.snapshot.StatusSnapshot`; `simulate` is what `node.simulate.results` writes.
Torch-free and free of everything else that is heavy: a command builds its document and prints it by `common.emit`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from starling.kernels.schema import Case, RuleCase
from starling.node.status.snapshot import Exchanges, PeerStatus


class Document(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """One JSON object on standard output; its first key is `version`."""


# --- a running node ---------------------------------------------------------------------------------------------


class Peers(Document, frozen=True):
    """`starling peers --json`."""

    peer: str
    """This node's own id."""
    swarm: str
    peers: tuple[PeerStatus, ...]


class Evaluation(Document, frozen=True):
    """`starling eval --json`."""

    metric: str
    value: float | None
    """On held-out data; null if nothing was measured yet."""
    round: int | None


class Verdict(Document, frozen=True):
    """`starling ban|unban|trust --json`: how that peer stands now."""

    peer: str
    standing: Literal["probation", "active", "quarantine", "ban"]
    trusted: bool
    why: str
    shut_out_s: float | None
    """Seconds that a quarantine or ban still lasts; null without an end, or without either."""


class Revoked(Document, frozen=True):
    """`starling revoke --json`."""

    removed: tuple[str, ...]
    """Members that are out."""


class Exported(Document, frozen=True):
    """`starling export --json`."""

    file: str
    bytes: int


class Invited(Document, frozen=True):
    """`starling invite --json`."""

    invite: str
    """The line that others join by."""
    swarm: str
    bootstrap: tuple[str, ...]
    """Addresses in it."""
    number: int | None = None
    """Of the invitation, for `starling revoke`; null where members need none."""
    until: str | None = None
    """The day it ends, YYYY-MM-DD."""
    peer: str | None = None
    """The only peer that can use it; null: the first that does."""
    left: int | None = None
    """Invitations this node has still to give; null: as many as it likes."""


class Founded(Document, frozen=True):
    """`starling found --json`, once the node listens. It goes on running."""

    name: str
    swarm: str
    peer: str
    directory: str
    addresses: tuple[str, ...]
    invite: str


class Joined(Document, frozen=True):
    """`starling join --json`, once the node listens. It goes on running."""

    swarm: str
    peer: str
    directory: str
    addresses: tuple[str, ...]


class Record(Document, frozen=True):
    """A line of `starling logs --json`: the event's own fields come beside these."""

    time: float
    """Unix time."""
    level: Literal["debug", "info", "warning", "error", "critical"]
    event: str
    """snake_case, e.g. peer_joined; docs/operating.md lists them."""


# --- settings ---------------------------------------------------------------------------------------------------


class ShownManifest(Document, frozen=True):
    """`starling manifest show --json`."""

    swarm: str | None
    """Its id; null if it is not founded yet."""
    manifest: dict[str, Any]
    """By section, as in the file."""


class ShownConfig(Document, frozen=True):
    """`starling config show --json`: the parts that were asked for."""

    manifest: dict[str, Any] | UnsetType = UNSET
    node: dict[str, Any] | UnsetType = UNSET
    scenario: dict[str, Any] | UnsetType = UNSET


# --- demo -------------------------------------------------------------------------------------------------------


class DemoBan(msgspec.Struct, frozen=True, kw_only=True):
    """The honest nodes just before `--ban-at`."""

    round: int | None
    after_s: float
    mean: float | None
    min: float | None


class DemoNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a demo. One that never answered has only the first three."""

    peer: str
    state: Literal["done", "left", "killed", "banned", "failed"]
    byzantine: bool
    rounds: int | UnsetType = UNSET
    local_steps: int | UnsetType = UNSET
    value: float | UnsetType | None = UNSET
    bytes_sent: int | UnsetType = UNSET
    bytes_received: int | UnsetType = UNSET
    exchanges: Exchanges | UnsetType = UNSET
    rejoined: bool | UnsetType = UNSET
    """It resumed an earlier life's state."""
    joined_late: bool | UnsetType = UNSET


class DemoSummary(Document, frozen=True):
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
    """What it would be if the vector went as it is."""
    nodes: tuple[DemoNode, ...]


# --- research ---------------------------------------------------------------------------------------------------


class Codecs(Document, frozen=True):
    """`starling bench codec --json`."""

    cases: tuple[Case, ...]


class Rules(Document, frozen=True):
    """`starling bench rules --json`."""

    cases: tuple[RuleCase, ...]


class Degree(msgspec.Struct, frozen=True, kw_only=True):
    """Peers that a member hears."""

    largest: int
    mean: float


class OverlayFacts(Document, frozen=True):
    """`starling overlay show --json`. null where there is no such measure, or n is too large for it."""

    kind: str
    n: int
    k: int
    seed: int
    round: int
    parameters: dict[str, bool | int | float | str]
    symmetric: bool
    period: int | None
    """null: every round is drawn anew."""
    measured_rounds: int
    degree: Degree
    degree_of_all_rounds: Degree
    messages_per_node_and_round: float
    spectral_gap: float | None
    finite_time_rounds: int | None
    """After so many rounds from round 0 on all have the average; null: never."""
    left_out_of_phase: float | None
    left_after_measured_rounds: float | None
    expected_contraction: float | None
    chi_rounds: tuple[float, float] | None
    edges: tuple[tuple[int, int, float], ...]
    """(who hears, whom, mixing weight) in the round asked for."""


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """Lists of equal length."""

    rounds: tuple[int, ...]
    consensus_error: tuple[float, ...]
    """1 at the start."""
    messages_per_node: tuple[float, ...]


class OverlayComparison(Document, frozen=True):
    """`starling overlay compare --json`."""

    n: int
    kinds: dict[str, Walk]


class OverlaySampling(Document, frozen=True):
    """`starling overlay sampling --json`."""

    n: int
    bad: int
    k: int
    rounds: int
    more_than_b: tuple[float, ...]
    """Chance that more than b of those asked are bad, b from 0 on."""
    most: int
    never_half: int | None
