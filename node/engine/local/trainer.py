"""Interface of trainers, which train a replica between exchanges, for the session.

Shapes: d parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from starling.gossip.api import Losses
from starling.gossip.replica import Replica
from starling.node.engine.exchange.api import Handlers
from starling.node.engine.local.rates import Rates


@dataclass(frozen=True, slots=True)
class CrewFacts:
    """Facts about a stage of a crew."""

    by_calls: bool  # whether calls do the local steps, instead of `Trainer.step`
    batches: int  # batches of held-out data that the first stage evaluates
    most_state_bytes: int  # most bytes of any stage's state


NO_CREW = CrewFacts(by_calls=False, batches=0, most_state_bytes=0)


@dataclass(frozen=True, slots=True)
class TrainerFacts:
    """Facts about a trainer before the first step."""

    metric: str
    higher_is_better: bool
    samples: int  # number of this node's training samples
    device: str
    large: bool  # whether the model is so large that copies of it matter
    crew: CrewFacts = NO_CREW


@dataclass(frozen=True, slots=True)
class TrainerFigures:
    """Measurements of a trainer so far."""

    epsilon: float | None  # ε spent so far; None without differential privacy
    halted: str  # why training on the data has stopped; "" while it continues
    noise_scale: float | None  # noise scale in samples; None where it is not measured, or not known yet


class Trainer(Protocol):
    """Does one node's local steps and evaluations, and holds the part of its state that is not mixed."""

    facts: TrainerFacts
    replica: Replica
    rates: Rates

    @property
    def schema(self) -> bytes:
        """Return the digest of the parameters' names and shapes."""

    @property
    def steps(self) -> int:
        """Return the number of local steps done, undone ones included."""

    @property
    def step(self) -> Callable[[int], float | None]:
        """Return what does a local step at the rate of a round -> its loss, nan if it used no data; None: it was undone."""

    def handlers(self) -> Handlers:
        """Return handlers of calls that only this trainer knows."""

    def losses(self) -> Losses | None:
        """Return what computes the losses of models on the last local step's batch; None where they would reveal data."""

    def figures(self) -> TrainerFigures:
        """Return the current figures."""

    def take_notes(self) -> tuple[str, ...]:
        """Return a line for the owner on each change that happened by itself since the last call."""

    def exported(self) -> dict[str, Tensor]:
        """Return a copy of the model as `load_state_dict` takes it, with normalisation statistics estimated anew."""

    def file_facts(self) -> Mapping[str, str | int]:
        """Return the facts for a file of the model."""

    def release_gradient(self) -> None:
        """Free memory that only local steps need."""

    def trim(self) -> None:
        """Return freed memory to the system."""

    def mark(self) -> None:
        """Mark the model as good: it is restored after a step that makes it infinite or nan."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Resume from a checkpoint. Raises ValueError: it does not fit, and nothing has changed."""

    def replaced(self) -> None:
        """Delete what is stored of another model: the replica took over peers' models in a round."""

    def install(self, offered: Tensor, round: int) -> None:
        """Install an offered model, in `round`, with empty optimiser state and a rate that climbs from there.

        Raises ValueError: it is another model.
        """

    def side_state(self) -> dict[str, Tensor]:
        """Return the tensors that late joiners get besides the model, by names other than "x"."""

    def check_side_state(self, tensors: dict[str, Tensor]) -> None:
        """Raise ValueError unless the tensors that a peer sends besides its model "x" fit ours; the dict may be changed."""

    def take_side_state(self, given: Sequence[Mapping[str, Tensor]]) -> None:
        """Install what peers gave, whose models agreed; `check_side_state` has accepted it."""

    def close(self) -> None:
        """Write what must not be lost. Raises OSError."""
