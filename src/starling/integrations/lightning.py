"""Lightning's Trainer as a member of a swarm: `Trainer(…, callbacks=[SwarmCallback("run", INVITE)])`.

A round ends in `on_train_batch_end`, so what is validated and saved afterwards is the mixed model, wherever among the callbacks this one
stands. Checkpoints say where in a round they were made: `fit(…, ckpt_path=…)` goes on in the middle of a round if the node is still in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from starling.integrations import distributed


class SwarmCallback(Callback):  # type: ignore[misc]  # Lightning's types are not looked at
    """Joins when training begins, ends it when the swarm has finished, and leaves at its end.

    Args:
        given: the arguments of `starling.Swarm`, without model and optimizer. Or a function and its first arguments, which is given these
            two by name and returns a Swarm: `SwarmCallback(starling.Swarm.create, "run", rounds=50)`, and with several ranks `create` of
            `starling.integrations.distributed`.
        keys: arguments by name.

    Attributes:
        swarm: of the last training; None before the first.
    """

    def __init__(self, *given: Any, **keys: Any) -> None:
        make, *rest = given if callable(given[0]) else (distributed.join, *given)
        self._make = partial(make, *rest, **keys)
        self._place: Mapping[str, int] = {}  # of a checkpoint
        self.swarm: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join, and wait until the swarm trains."""
        self.swarm = self._make(model=pl_module, optimizer=trainer.optimizers)
        place, self._place = self._place, {}
        if place:
            self.swarm.load_state_dict(place)
        trainer.should_stop |= self.swarm.finished

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        """Count a local step, if there was one; at a round's end, take over the mixed parameters."""
        if not self.swarm.finished:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
            self.swarm.step(None if loss is None else loss * trainer.accumulate_grad_batches)
        trainer.should_stop |= self.swarm.finished

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the swarm."""
        self.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the swarm."""
        self.close()

    def state_dict(self) -> dict[str, int]:
        """Return where in a round training is."""
        return {} if self.swarm is None else self.swarm.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on there when training begins."""
        self._place = state_dict

    def close(self) -> None:
        """Leave, if it has joined."""
        if self.swarm is not None:
            self.swarm.close(part=False)
