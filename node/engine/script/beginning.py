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
from starling.node.config.start import verify
from starling.node.engine.rehearsal import calling
from starling.node.engine.script import start_file
from starling.node.engine.side_state import carried_buffers
from starling.node.engine.start import initial
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Task


@dataclass(frozen=True, slots=True)
class Beginning:
    """Beginning of one swarm.

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


def beginning_of(opening: Open) -> Beginning:
    """Return what the swarm of an opening begins with. Raises ConfigError: its file or its task cannot be used."""
    return _of_scripts(opening) if script.trains(opening.manifest) else _of_task(opening)


def _of_scripts(opening: Open) -> Beginning:
    section = opening.manifest.task
    verify(section.start, opening.start)
    file, made = Path(opening.start), task(section.kind, section.params())

    def loaded() -> tuple[Layout, Tensor]:
        try:
            return start_file.load(file)
        except (ValueError, OSError) as error:
            raise ConfigError(f"start: {file} {error}; remove it, and it is fetched anew") from error

    return Beginning(loaded()[0], lambda: loaded()[1], made.metric, made.higher_is_better)


def _of_task(opening: Open) -> Beginning:
    manifest = opening.manifest
    consent.find(manifest, opening.code)
    kind = manifest.task.kind
    made: Task = calling(kind, "making the task", lambda: task(kind, manifest.task.params()))
    module = initial(made, manifest, opening.start)
    if names := carried_buffers(manifest, module):
        raise ConfigError(
            f"task.buffers: this swarm averages {names[0]}, which a script keeps to itself; run the task itself, `starling run`"
        )
    form = layout(module)
    return Beginning(form, lambda: flatten(initial(made, manifest, opening.start, checked=True), form), made.metric, made.higher_is_better)
