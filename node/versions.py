"""The versions of everything that one program writes and another reads, in one table. A leaf: pure, imports nothing of Starling.

Two programs understand each other where their ranges meet. On the wire every lane is negotiated by itself, the newest that both speak; a
file is read if its number is in the range, and what is written has the newest. A number is raised for every change that a reader of the one
before would misread or refuse; `oldest` is raised when the older is no longer read. docs/upgrade.md is for people, decisions/0067 says why.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

UPGRADE: Final = "pip install --upgrade starling-swarm"
LIBP2P: Final = "0.8.1"  # the only package that is installed separately, without its dependencies: decisions/0136
INSTALL_LIBP2P: Final = f"pip install --no-deps libp2p=={LIBP2P}"
MOST: Final = 10**6  # largest version number accepted from a peer or a file


class Range(NamedTuple):
    """The oldest version that is read, and the newest, which is written; 1 <= oldest <= newest."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"{self.oldest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.oldest <= version <= self.newest


LANES: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "control": Range(1, 1),
        "exchange": Range(1, 1),
        "state": Range(2, 2),  # 2: StateOffer.digest is the root of the chunks' digests; of 1 it was that of the bytes
        "crew": Range(2, 2),  # 2: what a stage says at a meeting is signed; a node of 1 signs nothing, and would take minutes for a fault
    }
)
MANIFEST: Final = Range(1, 1)
INVITE: Final = Range(1, 2)  # 2 carries an invitation of an admission that asks for one
CHECKPOINT: Final = Range(1, 1)  # checkpoint.safetensors, best.safetensors and the snapshots that members give away
SNAPSHOT: Final = Range(1, 1)  # `starling status --json`, record.jsonl, final.json
RUN_DIRECTORY: Final = Range(1, 1)  # names and meaning of its files; from 2 on a file `format` holds the number
IDENTITY: Final = Range(1, 1)  # an Ed25519 key in PEM (PKCS #8), which has no number of its own


class Versioned(NamedTuple):
    """A row of the table."""

    what: str
    where: str
    """Files, or the lane, that have it."""
    range: Range
    older: str
    """What to do with one that is too old to be read."""


TABLE: Final[tuple[Versioned, ...]] = (
    *(
        Versioned(f"protocol: {lane}", f"/starling/{lane}/N between nodes", known, "upgrade the older node")
        for lane, known in LANES.items()
    ),
    Versioned("manifest", "manifest.toml", MANIFEST, "none is older"),
    Versioned("invite", "invite", INVITE, "ask a member for another: starling invite"),
    Versioned("checkpoint", "checkpoint.safetensors, best.safetensors", CHECKPOINT, "export with the older version first: starling export"),
    Versioned("snapshot", "record.jsonl, final.json", SNAPSHOT, "look at it with the version that wrote it"),
    Versioned("run directory", "format", RUN_DIRECTORY, "none is older"),
    Versioned("identity", "identity.key", IDENTITY, "none is older"),
)


def ids(lane: str, known: Range) -> list[str]:
    """Return the protocol ids of a lane, the newest first, as they are proposed."""
    return [f"/starling/{lane}/{version}" for version in range(known.newest, known.oldest - 1, -1)]


def spoken(lanes: Mapping[str, Range]) -> bytes:
    """Return the bytes that a node sends about its lanes to a peer without a common version: "control 1 1, crew 1 1, exchange 1 1,
    state 2 2".
    """
    return ", ".join(f"{lane} {known.oldest} {known.newest}" for lane, known in sorted(lanes.items())).encode()


def heard(told: bytes) -> dict[str, Range]:
    """Return the ranges in a peer's message, including unknown lanes. Raises ValueError: it is invalid."""
    ranges: dict[str, Range] = {}
    for part in told.decode("ascii").split(", "):
        lane, oldest, newest = part.split(" ")
        if not (oldest.isdigit() and newest.isdigit() and 1 <= int(oldest) <= int(newest) <= MOST):
            raise ValueError("not a range of versions")
        ranges[lane] = Range(int(oldest), int(newest))
    return ranges


def mismatch(ours: Mapping[str, Range], theirs: Mapping[str, Range] | None) -> str:
    """Explain in one line why two nodes cannot exchange frames, and which must be upgraded; "" if they can.

    `theirs`: None for a node that cannot say what it speaks: only those before 0.1 cannot.
    """
    if theirs is None:
        return "speaks another version of the protocol and cannot say which, so an older one; ask its owner to upgrade, this node cannot"
    for lane, known in ours.items():
        other = theirs.get(lane)
        if other is None:
            return f"says that it speaks no lane {lane!r}; ask its owner for the version of its program"
        says = f"says that it speaks version {other} of the {lane} lane, this node {known}"
        if other.oldest > known.newest:
            return f"{says}: this node is older; `{UPGRADE}`, then `starling run`"
        if other.newest < known.oldest:
            return f"{says}: it is older; ask its owner to upgrade, this node need not"
    return ""


def unreadable(what: str, version: object, known: Range, older: str) -> str:
    """Return one line about a file of an unreadable version: the version found, the readable ones, and what to do."""
    if isinstance(version, int) and version > known.newest:
        return f"{what} of version {version}, this program reads {known}; `{UPGRADE}`"
    return f"{what} of version {version!r:.20}, this program reads {known}; {older}"
