"""Stored states of a stage, so that a crew whose stages differ returns to a state that all have."""

from pathlib import Path

from torch import Tensor

from starling.gossip.pipeline.meeting import KEPT
from starling.node.engine import tensor_file
from starling.node.storage import private

KIND = "stage"


class SavedStates:
    """The newest `KEPT` states of a stage by local steps, beside `file`, or in memory if that is None."""

    def __init__(self, stage: int, file: Path | None) -> None:
        self._stage, self._file = stage, file
        self._states: dict[int, Path | bytes] = {}
        self._crew: int | None = None

    @property
    def points(self) -> tuple[int, ...]:
        """Return the local steps of stored states, the oldest first."""
        return tuple(sorted(self._states))

    def moved(self, crew: int) -> bool:
        """Use this crew's states from now on: drop those of another; return whether there were any."""
        if crew == self._crew:
            return False
        others = self._crew is not None
        for step in self.points:
            self.drop(step)
        if self._file is not None:
            for path in self._file.parent.glob(f"{self._file.name}.*-*"):
                of, _, number = path.suffix[1:].partition("-")
                if of == str(crew) and number.isdecimal():
                    self._states[int(number)] = path
                else:
                    others = True
                    path.unlink(missing_ok=True)
        self._crew = crew
        return others

    def carry(self, crew: int) -> None:
        """Use the stored states for another crew, which has none here."""
        if crew == self._crew:
            return
        carried = {step: self.read(step) for step in self.points}
        self.moved(crew)
        for step in self.points:  # states of an earlier crew with this number
            self.drop(step)
        for step, state in sorted(carried.items()):
            self.put(step, state)

    def keep(self, step: int, tensors: dict[str, Tensor]) -> int:
        """Store a state; return its number of bytes."""
        return self.put(step, tensor_file.pack(tensors, {"kind": KIND, "stage": self._stage, "local_steps": step}))

    def put(self, step: int, state: bytes) -> int:
        """Store the bytes of a state, drop later ones, which are of steps that the crew has given up; return their number."""
        if self._file is None:
            self._states[step] = state
        else:
            path = self._file.with_name(f"{self._file.name}.{self._crew}-{step}")
            private.replace(path, state)
            self._states[step] = path
        earlier = [other for other in self.points if other < step]
        for other in {*self.points} - {step, *earlier[1 - KEPT :]}:
            self.drop(other)
        return len(state)

    def drop(self, step: int) -> None:
        """Delete a stored state."""
        if isinstance(old := self._states.pop(step), Path):
            old.unlink(missing_ok=True)

    def read(self, step: int) -> bytes:
        """Return a stored state; b"" if it is not stored."""
        state = self._states.get(step, b"")
        return state.read_bytes() if isinstance(state, Path) else state

    def unpacked(self, step: int) -> dict[str, Tensor]:
        """Return a stored state's tensors. Raises ValueError: it is not of this stage."""
        tensors, facts = tensor_file.unpack(self.read(step))
        if facts.get("kind") != KIND or facts.get("stage") != self._stage or facts.get("local_steps") != step:
            raise ValueError("is the state of another stage")
        return tensors
