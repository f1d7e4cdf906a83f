"""`starling track`: write a node's figures to a file or an experiment tracker."""

import sys
from contextlib import closing
from itertools import chain
from pathlib import Path

import click

from starling.gossip.errors import GossipError
from starling.node.cli import completion
from starling.node.cli.common import dir_option, say
from starling.node.cli.help import command
from starling.node.node_handle import Attached
from starling.node.status.scalars import scalars
from starling.node.tracking.catalogue import TRACKERS, run_of


@command(
    ("starling track csv figures.csv --dir starling-2", "tag, round, time, value; any spreadsheet reads it"),
    ("starling track tensorboard charts/starling-2 --dir starling-2", "then tensorboard --logdir charts"),
    ("starling track mlflow http://127.0.0.1:5000", "as a run of an experiment named after the swarm"),
    ("starling track wandb my-project", "after wandb login, or with WANDB_MODE=offline"),
)
@click.argument("kind", metavar="KIND", shell_complete=completion.names("starling.node.tracking.catalogue:TRACKERS"))
@click.argument("target", metavar="TARGET")
@dir_option
def track(kind: str, target: str, run_dir: Path) -> None:
    """Write loss, evaluations, speed and traffic of a node to TARGET by KIND: csv, tensorboard, mlflow, wandb, or a package's.

    Follows a running node until its rounds are done or Ctrl-C; of one that has ended its record is taken, else its last status. The node
    itself knows nothing of it and cannot be held up.
    """
    sys.path.insert(0, "")  # the owner may have a module:Class in the current folder
    snapshots, written = Attached(run_dir).snapshots(), 0
    first = next(snapshots)
    with closing(TRACKERS.build("tracker", kind, {"target": target, "run": run_of(first)}, trusted=True)) as tracker:
        try:
            for point in scalars(chain([first], snapshots)):
                tracker.add(point)
                written += 1
        except KeyboardInterrupt:
            pass
        except OSError as error:
            raise GossipError(f"TARGET: {target} cannot be written any more: {error.strerror or error}") from error
    say(f"wrote {written:,} points to {target}")
