"""A Trainer of transformers, or of TRL, as a member of a swarm: `Trainer(…, callbacks=[SwarmCallback("run", INVITE)])`.

What is trained is exchanged, of a model of peft the adapters alone. A round ends in `on_step_end`, so what the Trainer evaluates and saves
afterwards is the mixed model. Its checkpoints say where in a round it was: `train(resume_from_checkpoint=True)` goes on in the middle of a
round if the node is still in it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from starling.integrations import distributed

PLACE = "starling.Swarm"  # in a Trainer's state: where in a round it is


class SwarmCallback(TrainerCallback):  # type: ignore[misc]  # transformers' types are not looked at
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
        self._loss: float | None = None
        self.swarm: Any = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Join, and wait until the swarm trains."""
        self.close()
        self.swarm = self._make(model=given["model"], optimizer=given["optimizer"])
        if place := state.stateful_callbacks.get(PLACE):
            self.swarm.load_state_dict(place)
        control.should_training_stop |= self.swarm.finished

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave the model as it is, if the swarm had finished before: a Trainer takes one step all the same."""
        if self.swarm.finished:
            given["model"].zero_grad()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Note the loss."""
        self._loss = given["logs"].get("loss", self._loss)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Count a local step; at a round's end, take over the mixed parameters."""
        if not self.swarm.finished:
            self.swarm.step(self._loss)
            self._loss = None
        state.stateful_callbacks[PLACE] = self.swarm.state_dict()
        control.should_training_stop |= self.swarm.finished

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave the swarm."""
        self.close()

    def close(self) -> None:
        """Leave, if it has joined. To be called where training was interrupted."""
        if self.swarm is not None:
            self.swarm.close(part=False)
