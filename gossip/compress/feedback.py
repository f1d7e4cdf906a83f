"""Error feedback: what becomes of what a compressor drops. Every scheme has one shape.

    sender      state = start(x);  message, state = compress(state, update, compressor, generator)
    receiver    estimate = receive(held, message)

The message is what crosses the wire and what every receiver adds: to the model for "none", "ef", "dgc" and "demo", whose estimate is the
message itself; to its copy of the sender's estimate h for "ef21", "ef21_sgdm" and "econtrol". A receiver keeps one `held` per sender, the
last estimate, zeros at first. The sender's own h is in its state and equals it bit for bit, so these three need every message, in
order. `restore(state, message)` is for a message that nobody got.

Pure functions of tensors (…, d): leading dimensions are nodes side by side, and the compressor is given them all at once
(`gossip.compress.rows.Rows` makes such a one of a compressor of single vectors). Updates are gradients, or steps lr·gradient; a state
has the unit of the updates that went in.

Shapes: d parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from starling.gossip.compress.compressor import Compressor
from starling.gossip.compress.dgc import Dgc
from starling.gossip.lazy_torch import Generator, Tensor, torch


class Feedback(Protocol):
    """What a scheme does at the sender (start, compress, restore) and at the receiver (receive)."""

    def start(self, x: Tensor) -> Any:
        """The sender's state before the first update, for vectors shaped like x (…, d)."""
        ...

    def compress(self, state: Any, update: Tensor, compressor: Compressor, generator: Generator) -> tuple[Tensor, Any]:
        """Update (…, d) -> message (…, d) and the new state."""
        ...

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """The sender's update as far as its messages tell (…, d): to be used, and held until its next message."""
        ...

    def restore(self, state: Any, message: Tensor) -> Any:
        """The state after all, if nobody got `message`."""
        ...


def compress_with_feedback(
    compressor: Compressor, x: Tensor, memory: Tensor, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Q(x + memory), and what it dropped as the new memory.

    Conserves: what went in equals what came out plus the memory, x + memory = Q + new memory, up to one rounding of each
    coordinate.
    If the result is lost on the way, add it back to the memory. Not for models sent to changing peers: the memory
    would be owed to a peer that is not the next one.

    Source: Stich, Cordonnier and Jaggi 2018, Algorithm 1 (arXiv:1809.07599).

    Args:
        compressor: any contraction.
        x: (…, d) finite.
        memory: (…, d), in units of x; zeros at first.
        generator: chance for the compressor.
    """
    owed = x + memory
    compressed = compressor.compress(owed, generator)
    return compressed, owed - compressed


@dataclass(frozen=True, slots=True)
class NoFeedback:
    """What is dropped is forgotten. Right for unbiased compressors; a biased one keeps its bias for ever."""

    def start(self, x: Tensor) -> None:
        """Nothing to keep."""
        return

    def compress(
        self, state: None, update: Tensor, compressor: Compressor, generator: Generator
    ) -> tuple[Tensor, None]:
        """The compressed update."""
        return compressor.compress(update, generator), None

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """The message."""
        return message

    def restore(self, state: None, message: Tensor) -> None:
        """What is lost is lost."""
        return


@dataclass(frozen=True, slots=True)
class ErrorFeedback:
    """EF, also known as MEM-SGD: what was dropped is owed to the next update.

    Σ updates = Σ messages + memory, so the model plus what is still owed moves as if nothing were compressed. With data that differ
    between nodes and a constant rate it ends near the optimum, not at it. The memory has the update's unit: feed lr·gradient and a
    changed rate needs nothing, feed gradients and the memory must be scaled by old rate over new.

    Source: Stich, Cordonnier and Jaggi 2018 (arXiv:1809.07599); Karimireddy et al. 2019 (arXiv:1901.09847).
    """

    def start(self, x: Tensor) -> Tensor:
        """Nothing owed."""
        return torch.zeros_like(x)

    def compress(
        self, state: Tensor, update: Tensor, compressor: Compressor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Q(update + owed), and what is owed now."""
        return compress_with_feedback(compressor, update, state, generator)

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """The message."""
        return message

    def restore(self, state: Tensor, message: Tensor) -> Tensor:
        """What did not arrive is owed again."""
        return state + message


@dataclass(frozen=True, slots=True)
class Ef21:
    """EF21: send the compressed change of the gradient since the last estimate, h += Q(g − h) at both ends.

    With full gradients the estimates become exact and so does the optimum, at a constant rate and however the data differ. With
    small batches their noise is not averaged out: then `Ef21Sgdm`.

    Source: Richtárik, Sokolov and Fatkhullin 2021 (arXiv:2106.05203).
    """

    def start(self, x: Tensor) -> Tensor:
        """The estimate h that the receivers hold: zeros."""
        return torch.zeros_like(x)

    def compress(
        self, state: Tensor, update: Tensor, compressor: Compressor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Q(g − h), and h with that added."""
        message = compressor.compress(update - state, generator)
        return message, state + message

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """The receiver's copy of h, by the same addition."""
        return held + message

    def restore(self, state: Tensor, message: Tensor) -> Tensor:
        """The old h but for one rounding; who still has the state from before should take that, it is just what the receivers hold."""
        return state - message


@dataclass(frozen=True, slots=True, eq=False)
class Averaged:
    """State of `Ef21Sgdm`: the running mean v of the gradients (…, d), zeros before the first, and the estimate h (…, d)."""

    mean: Tensor
    estimate: Tensor


@dataclass(frozen=True, slots=True)
class Ef21Sgdm:
    """EF21 of a running mean of the gradients: v ← (1 − beta)·v + beta·g, then h += Q(v − h).

    The mean takes the noise out before compression could keep it in, so small batches will do. v starts at the first gradient that is
    not zero: until then v = 0, which needs no flag in the state.

    Source: Fatkhullin, Tyurin and Richtárik 2023, Algorithm 1 (arXiv:2305.15155).

    Args:
        beta: weight of the newest gradient, in (0, 1]; 1 is EF21.
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.beta <= 1.0:
            raise ValueError(f"beta must be in (0, 1], got {self.beta}")

    def start(self, x: Tensor) -> Averaged:
        """No gradient yet; the receivers hold zeros."""
        return Averaged(torch.zeros_like(x), torch.zeros_like(x))

    def compress(
        self, state: Averaged, update: Tensor, compressor: Compressor, generator: Generator
    ) -> tuple[Tensor, Averaged]:
        """Q(v − h), and v and h with what is new."""
        begun = state.mean.any(dim=-1, keepdim=True)
        mean = torch.where(begun, (1.0 - self.beta) * state.mean + self.beta * update, update)
        message = compressor.compress(mean - state.estimate, generator)
        return message, Averaged(mean, state.estimate + message)

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """The receiver's copy of h, by the same addition."""
        return held + message

    def restore(self, state: Averaged, message: Tensor) -> Averaged:
        """The old h but for one rounding, as in `Ef21`; v is the sender's alone."""
        return replace(state, estimate=state.estimate - message)


@dataclass(frozen=True, slots=True, eq=False)
class Controlled:
    """State of `EControl`: what is owed (…, d), and the estimate h (…, d)."""

    memory: Tensor
    estimate: Tensor


@dataclass(frozen=True, slots=True)
class EControl:
    """EF21 that also owes: q = Q(control·e + g − h), h += q, e += g − h.

    The control keeps the two kinds of feedback from amplifying each other; with control 1 they do, and it is unstable. Exact for full
    gradients like EF21, and with noise n nodes gain what they should.

    Source: Gao, Islamov and Stich 2023, Algorithm 2 (arXiv:2311.05645); there the control is δ/400 in theory and of order δ in practice.

    Args:
        control: share of the memory that enters each message, in (0, 1]; about the compressor's contraction δ.
    """

    control: float = 0.02

    def __post_init__(self) -> None:
        if not 0.0 < self.control <= 1.0:
            raise ValueError(f"control must be in (0, 1], got {self.control}")

    def start(self, x: Tensor) -> Controlled:
        """Nothing owed; the receivers hold zeros."""
        return Controlled(torch.zeros_like(x), torch.zeros_like(x))

    def compress(
        self, state: Controlled, update: Tensor, compressor: Compressor, generator: Generator
    ) -> tuple[Tensor, Controlled]:
        """The message q, and e and h with what is new."""
        message = compressor.compress(self.control * state.memory + update - state.estimate, generator)
        estimate = state.estimate + message
        return message, Controlled(state.memory + update - estimate, estimate)

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """The receiver's copy of h, by the same addition."""
        return held + message

    def restore(self, state: Controlled, message: Tensor) -> Controlled:
        """The old h but for one rounding, as in `Ef21`, and the message owed."""
        return Controlled(state.memory + message, state.estimate - message)


@dataclass(frozen=True, slots=True)
class DecoupledMomentum:
    """DeMo: of the momentum, what is sent is taken out: M ← decay·M + g, q = Q(M), M −= q.

    Fast components of the momentum are shared at once, slow ones stay at home until they have grown. Made for the largest cosine
    coefficients of each chunk (`gossip.compress.select.dct.DctTopK`), and for a step along the sign of the mean message: `sign_step`.

    Source: Peng, Quesnelle and Kingma 2024, Algorithm 1 (arXiv:2411.19870).

    Args:
        decay: of the momentum, in [0, 1); 1 would be error feedback.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"decay must be in [0, 1), got {self.decay}")

    def start(self, x: Tensor) -> Tensor:
        """No momentum."""
        return torch.zeros_like(x)

    def compress(
        self, state: Tensor, update: Tensor, compressor: Compressor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Q(M), and M without it."""
        return compress_with_feedback(compressor, update, self.decay * state, generator)

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """The message."""
        return message

    def restore(self, state: Tensor, message: Tensor) -> Tensor:
        """What did not arrive is momentum again."""
        return state + message


def sign_step(x: Tensor, mean_message: Tensor, lr: float, weight_decay: float = 0.0) -> Tensor:
    """DeMo's step: x·(1 − lr·weight_decay) − lr·sign(mean message).

    Every coordinate moves by lr or not at all, so one peer's outlier moves nothing further; but where data differ the sign of a mean is not
    the mean of anything, and the optimum is missed.

    Args:
        x: (…, d).
        mean_message: (…, d), summed in one fixed order, or replicas drift apart.
        lr: > 0.
        weight_decay: >= 0.
    """
    return x * (1.0 - lr * weight_decay) - lr * mean_message.sign()


FEEDBACKS: Mapping[str, Callable[..., Feedback]] = MappingProxyType(
    {
        "none": NoFeedback,
        "ef": ErrorFeedback,
        "ef21": Ef21,
        "ef21_sgdm": Ef21Sgdm,
        "econtrol": EControl,
        "dgc": Dgc,
        "demo": DecoupledMomentum,
    }
)
