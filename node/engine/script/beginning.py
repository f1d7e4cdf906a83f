"""Beginning of a script's swarm: names and shapes of the parameters, their first values, and the metric.

In a swarm of scripts they are those of the file of `task.start`. In that of a task, which a script may join as well, the task makes the
model.

Shapes: d parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.gossip.vector import Layout, flatten, layout
from starling.node.catalogues import task
from starling.node.config import consent, script
from starling.node.config.initial_model import verify
from starling.node.engine.initial_model import initial
from starling.node.engine.script import start_file
from starling.node.engine.side_state import carried_buffers
from starling.node.engine.task_smoke_test import calling
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Task


@dataclass(frozen=True, slots=True)
class Beginning:
    """Initial state of one swarm of scripts.

    Args:
        layout: of the model.
        values: gives its first parameters (d,).
        metric: name of what the script's evaluation gives.
        higher_is_better: which way it improves.
    """

    layout: Layout
    values: Callable[[], Tensor]
    metric: str
    higher_is_better: bool


def beginning_of(open_request: Open) -> Beginning:
    """Return the initial state of the swarm in an Open call. Raises ConfigError: its file or its task cannot be used."""
    return _of_scripts(open_request) if script.trains(open_request.manifest) else _of_task(open_request)


def _of_scripts(open_request: Open) -> Beginning:
    section = open_request.manifest.task
    verify(section.start, open_request.start)
    file, made = Path(open_request.start), task(section.kind, section.params())

    def loaded() -> tuple[Layout, Tensor]:
        try:
            return start_file.load(file)
        except (ValueError, OSError) as error:
            raise ConfigError(f"start: {file} {error}; remove it, and it is fetched anew") from error

    return Beginning(loaded()[0], lambda: loaded()[1], made.metric, made.higher_is_better)


def _of_task(open_request: Open) -> Beginning:
    manifest = open_request.manifest
    consent.find(manifest, open_request.code)
    kind = manifest.task.kind
    made: Task = calling(kind, "making the task", lambda: task(kind, manifest.task.params()))
    module = initial(made, manifest, open_request.start)
    if names := carried_buffers(manifest, module):
        raise ConfigError(
            f"task.buffers: this swarm averages {names[0]}, which a script keeps to itself; run the task itself, `starling run`"
        )
    form = layout(module)
    return Beginning(
        form, lambda: flatten(initial(made, manifest, open_request.start, checked=True), form), made.metric, made.higher_is_better
    )
