"""JSON documents that `--json` prints. `version` is raised when an older reader would misread one; new keys do not raise it.

JSON Schemas of all of them are in docs/schemas, made by tools/schemas.py.

`status` and each line of `status --watch` is a `node.status.snapshot.StatusSnapshot`; `simulate` is what `node.simulate.results` writes.
Torch-free and free of everything else that is heavy: a command builds its document and prints it by `common.emit`.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from starling.kernels.schema import Case, LinkCase, LoopCase, NeverWorseCase, OverlapCase, RuleCase
from starling.node.status.check import Check
from starling.node.status.snapshot import PeerStatus


class Document(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """One JSON object for standard output; its first key is `version`."""


class Peers(Document, frozen=True):
    """`starling peers --json`."""

    peer: str
    """This node's own id."""
    swarm: str
    peers: tuple[PeerStatus, ...]


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


class Joined(Document, frozen=True):
    """`starling join --json`, once the node listens. It goes on running."""

    swarm: str
    peer: str
    directory: str
    addresses: tuple[str, ...]


class Created(Joined, frozen=True):
    """`starling create --json`, once the node listens. It goes on running."""

    name: str
    invite: str


class ReadVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of one format or lane that this program reads; it writes the newest."""

    what: str
    oldest: int
    newest: int


class UpgradeCheck(Document, frozen=True):
    """`starling upgrade-check --json`."""

    path: str
    """Run directory or manifest, absolute."""
    program: str
    """The version of this program."""
    reads: tuple[ReadVersion, ...]
    checks: tuple[Check, ...]
    """The last one is the whole: what an upgrade changes, and what to do."""


class Diagnosis(Document, frozen=True):
    """`starling doctor --json`."""

    directory: str
    """The run directory, absolute; it need not exist yet."""
    running: bool
    """A node runs there."""
    checks: tuple[Check, ...]


class Record(Document, frozen=True):
    """A line of `starling logs --json`: the event's own fields come beside these."""

    time: float
    """Unix time."""
    level: Literal["debug", "info", "warning", "error", "critical"]
    event: str
    """snake_case, e.g. peer_joined; docs/operating.md lists them."""


class ShownManifest(Document, frozen=True):
    """`starling manifest show --json`."""

    swarm: str | None
    """Its id; null if it is not created yet."""
    manifest: dict[str, Any]
    """By section, as in the file."""


class ShownConfig(Document, frozen=True):
    """`starling config show --json`: the parts that were asked for."""

    manifest: dict[str, Any] | UnsetType = UNSET
    node: dict[str, Any] | UnsetType = UNSET
    scenario: dict[str, Any] | UnsetType = UNSET


class Codecs(Document, frozen=True):
    """`starling bench codec --json`."""

    cases: tuple[Case, ...]


class Rules(Document, frozen=True):
    """`starling bench rules --json`."""

    cases: tuple[RuleCase, ...]


class Links(Document, frozen=True):
    """`starling bench link --json`."""

    cases: tuple[LinkCase, ...]


class Loops(Document, frozen=True):
    """`starling bench loop --json`."""

    cases: tuple[LoopCase, ...]


class Overlaps(Document, frozen=True):
    """`starling bench overlap --json`."""

    cases: tuple[OverlapCase, ...]


class NeverWorse(Document, frozen=True):
    """`starling bench never-worse --json`. Fewer cases than cells after Ctrl-C."""

    cases: tuple[NeverWorseCase, ...]


class Degree(msgspec.Struct, frozen=True, kw_only=True):
    """Peers that a member receives from."""

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
    """(receiver, sender, mixing weight) in the round asked for."""


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
    """Probability that more than b of the sampled peers are Byzantine, b from 0 on."""
    most: int
    never_half: int | None
