"""Trackers by name: built in, of an installed package (entry point group `starling.trackers`), or "module:Class".

They run in the program of `starling track` and not in the node, which neither waits for them nor imports what they need.
"""

from typing import NamedTuple, Protocol

from starling.gossip.catalogue import Catalogue, Entry
from starling.node.status.scalars import Scalar
from starling.node.status.snapshot import StatusSnapshot


class Run(NamedTuple):
    """The node whose figures they are."""

    peer: str
    swarm: str
    """Its id."""
    name: str
    """The swarm's, for people."""
    task: str
    algorithm: str
    overlay: str


class Tracker(Protocol):
    """Made with `target`, what the owner typed, and `run`. Raises ConfigError: the target cannot be used, or a package is missing."""

    def add(self, point: Scalar) -> None:
        """Add one point; points of one tag come in order of time."""

    def close(self) -> None:
        """Close the tracker: there are no more points."""


def run_of(status: StatusSnapshot) -> Run:
    """Return the run of a node's snapshot."""
    return Run(status.peer, status.swarm, status.name, status.task, status.algorithm, status.overlay)


TRACKERS: Catalogue[Tracker, None] = Catalogue(
    "tracker",
    "starling.trackers",
    {
        "csv": Entry("starling.node.tracking.csv_file:CsvFile"),
        "tensorboard": Entry("starling.node.tracking.libraries:TensorBoard"),
        "mlflow": Entry("starling.node.tracking.libraries:MlFlow"),
        "wandb": Entry("starling.node.tracking.libraries:Wandb"),
    },
    members=("add", "close"),
    supplied=("target", "run"),
)
