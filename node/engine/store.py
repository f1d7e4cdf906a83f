"""Files of a node: the checkpoint, the best model, and models that the owner exports.

Shapes: d parameters.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.node.engine import tensor_file
from starling.node.engine.best import NAME as BEST
from starling.node.engine.best import Best
from starling.node.engine.checkpoint import Checkpoint, Checkpoints, NoCheckpoints, swarm_of
from starling.node.engine.exchange.api import Handlers
from starling.node.engine.local.trainer import Trainer
from starling.node.rpc import calls


class Store:
    """Files of one node next to its checkpoint; without one only exports are written. `schema` as of `late_join.Offered`."""

    def __init__(self, open_request: calls.Open, trainer: Trainer, schema: bytes) -> None:
        self._path, self._trainer, self._schema = open_request.checkpoint, trainer, schema.hex()
        swarm, best = swarm_of(open_request.manifest), None
        self._checkpoints: Checkpoints | NoCheckpoints = NoCheckpoints()
        if open_request.checkpoint:
            file = Path(open_request.checkpoint)
            self._checkpoints, best = Checkpoints(file, swarm=swarm, schema=self._schema), file.with_name(BEST)
        self.best = Best(best, swarm=swarm, schema=self._schema, higher_is_better=trainer.facts.higher_is_better, large=trainer.facts.large)
        self.round: Callable[[], int] = lambda: 0  # returns the round to write in files
        self.saved: Callable[[], None] = lambda: None  # called after each save

    def handlers(self) -> Handlers:
        """Return the handlers of Save and Stop."""
        return {calls.Save: self.save, calls.Stop: self.stop}

    def resumed(self) -> int | None:
        """Restore the trainer from the checkpoint -> its round; None: there is none. Raises ConfigError: it cannot be used."""
        checkpoint = self._checkpoints.load()
        if checkpoint is None:
            return None
        try:
            self._trainer.restore(checkpoint.tensors, checkpoint.local_steps)
        except ValueError as error:
            raise ConfigError(f"checkpoint {self._path}: {error}; move the file away to start afresh") from error
        return checkpoint.round

    @property
    def damaged(self) -> str:
        """Return why the newest checkpoint was not read and the one before it was; "": it was, or neither."""
        return self._checkpoints.damaged

    def model(self) -> Tensor | None:
        """Return (d,) the model of the last checkpoint; None if there is none that can be read."""
        with suppress(ConfigError):
            if saved := self._checkpoints.load():
                return saved.tensors["x"]
        return None

    def save(self, call: calls.Save) -> calls.Done | calls.Refused:
        """Write the checkpoint and the best model, and a model alone if requested."""
        return self._written(lambda: self._export(call))

    def stop(self, _call: calls.Stop) -> calls.Done | calls.Refused:
        """Write all files for the last time."""
        return self._written(self._close)

    def _close(self) -> calls.Refused | None:
        self._trainer.close()
        return None

    def _export(self, call: calls.Save) -> calls.Refused | None:
        if not call.export:
            return None
        write = self.best.copy if call.best else self._write_current
        return None if write(Path(call.export)) else calls.Refused("state", "no model was evaluated yet, so there is no best one")

    def _write_current(self, target: Path) -> bool:
        facts: dict[str, str | int] = {"kind": "export", "round": self.round(), "schema": self._schema, **self._trainer.file_facts()}
        tensor_file.save(target, self._trainer.exported(), facts).replace(target)
        return True

    def _written(self, more: Callable[[], calls.Refused | None]) -> calls.Done | calls.Refused:
        try:
            self._checkpoints.save(Checkpoint(self.round(), self._trainer.steps, self._trainer.tensors()))
            self.best.write()
            self.saved()
            refused = more()
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            return calls.Refused("disk", f"{name}{error.strerror or error}")
        return refused or calls.Done()
