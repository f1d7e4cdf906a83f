"""The engine's connection to one script: its last message, and the vectors that both share.

    waits      the script waits for a grant, or for a request for an evaluation
    measures   it evaluates
    else       it does local steps, or there is none

Shapes: d parameters.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.gossip.mix.borne import Borne, Total
from starling.node.config.schema import Manifest
from starling.node.engine.script.fingerprint import difference
from starling.node.engine.script.link import Link
from starling.node.engine.script.trainer import ScriptTrainer
from starling.node.rpc import script as messages
from starling.node.rpc.script import Closed, FromScript
from starling.node.rpc.shared_vectors import SharedVectors, new_file

AHEAD_OF_CLOCK = 4  # `Welcome.ahead` in clock pace


class Contact:
    """Connection to the scripts that connect to a folder, one after the other.

    Attributes:
        ahead: as of `Welcome`.
        waits, measures: see above.
        vectors: shared with the script; None: there was none yet.
        known: numbers besides the correction that the script received last.
    """

    def __init__(self, folder: Path, manifest: Manifest, trainer: ScriptTrainer) -> None:
        """Listen in the folder. Raises ConfigError: no socket can be created."""
        self._folder, self._manifest, self._trainer = folder, manifest, trainer
        self.ahead = AHEAD_OF_CLOCK if manifest.pace.kind == "clock" else int(manifest.pace.overlap)
        self._corrects = trainer.replica.abilities.in_place is not None
        self.waits = self.measures = False
        self.vectors: SharedVectors | None = None
        self.known = Borne()
        try:
            self._link = Link(folder)
        except OSError as error:
            raise ConfigError(f"--dir: no socket for the script in {folder}: {error.strerror or error}") from error

    @property
    def is_up(self) -> bool:
        return self._link.is_up

    @property
    def is_heard(self) -> bool:
        """Tell if a script has sent something."""
        return self._link.ready

    @property
    def sources(self) -> Sequence[int]:
        """Return the descriptors on which scripts are heard."""
        return self._link.sources

    def hear(self) -> FromScript | None:
        """Return what a script sent, while `is_heard`; None: it needs no answer. Raises Closed: it is gone."""
        return self._link.receive()

    def welcome(self, hello: messages.Hello, due: int, kept: int) -> None:
        """Let a script take part in round `due`; its stored state is that of round `kept`, -1: none.

        Raises Closed: it cannot take part, or is gone; OSError: there is no memory.
        """
        trainer = self._trainer
        layout, memories = trainer.layout, trainer.memory is not None
        if why := difference(hello, layout, self._manifest):
            self._link.send(messages.Refusal(why))
            self.hang_up()
        forms = {"memories": memories, "corrects": self._corrects}
        file = new_file(self._folder, layout.dim, layout.dtype, **forms)
        try:
            self.vectors = SharedVectors(file, layout.dim, layout.dtype, **forms)
            said = messages.Welcome(
                due, trainer.steps, memories, self._corrects, kept, self._manifest.pace.rounds, trainer.facts.metric, self.ahead
            )
            self._link.send(said, file)
        finally:
            os.close(file)
        self.waits, self.measures = True, False

    def grant(self, due: int, steps: int, *, keep: int, finished: bool) -> None:
        """Let the script do local steps of round `due`, or end. Raises Closed."""
        trainer, vectors, flows = self._trainer, self.vectors, False
        assert vectors is not None
        known: tuple[float, ...] = ()
        state: Any = trainer.replica.state
        if isinstance(state, Total):
            known, flows = tuple(state.known.tolist()), bool(state.known[0])
            self.known = Borne(*known)
            if flows:
                vectors.engine.correction.copy_(state.c)
        self._write(trainer.replica.settled if finished else trainer.replica.x)
        memory = trainer.memory
        age = 0 if memory is None else memory.age
        if memory is not None and age:
            vectors.engine.mean.copy_(memory.mean)
            vectors.engine.square.copy_(memory.square)
        self.waits = False
        self._link.send(messages.Grant(due, steps, trainer.rates.at(due), age, flows, known, keep, finished))

    def measure(self, due: int) -> None:
        """Request an evaluation of the model after round `due`. Raises Closed."""
        self._write(self._trainer.replica.settled)
        self.waits, self.measures = False, True
        self._link.send(messages.Measure(due))

    def hang_up(self) -> None:
        """Close the connection to a script that broke the protocol. Raises Closed, always."""
        self._link.hang_up()
        raise Closed

    def gone(self) -> None:
        """Note that the script has disconnected."""
        self.waits = self.measures = False

    def close(self) -> None:
        """Close the connection and stop listening."""
        self._link.close()

    def _write(self, x: Tensor) -> None:
        assert self.vectors is not None
        self.vectors.engine.x.copy_(x)
