"""Error feedback: what happens to the part of an update that a compressor drops. Every scheme is three formulas:

    sender      message = Q(scheme.target(state, update));  state = scheme.sent(state, update, message)
    receiver    estimate = scheme.receive(held, message)

A state is `vectors` tensors shaped like the update, zeros at first, in the unit of the updates (gradients, or steps lr·gradient). The
message crosses the wire, and every receiver adds it: to the model for "none", "ef", "dgc" and "demo", whose estimate is the message
itself; to its copy of the sender's estimate h for "ef21", "ef21_sgdm" and "econtrol". A receiver keeps one `held` per sender, the
last estimate, zeros at first. The sender's own h is in its state and equals it bit for bit, so these three need every message, in order.

Pure functions of tensors (…, d); leading dimensions are nodes side by side.

Shapes: d parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from starling.gossip.bounds import PositiveShare, ShareBelowOne, parameters
from starling.gossip.lazy_torch import Tensor, torch

State = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class NoFeedback:
    """Forget what is dropped. Right for unbiased compressors; a biased one stays biased. Base of all schemes."""

    vectors: ClassVar[int] = 0

    def start(self, x: Tensor) -> State:
        """Return the sender's state before the first update, for vectors shaped like x (…, d)."""
        return tuple(torch.zeros_like(x) for _ in range(self.vectors))

    def target(self, state: State, update: Tensor) -> Tensor:
        """Return (…, d): what is to be compressed, for an update (…, d)."""
        return update

    def sent(self, state: State, update: Tensor, message: Tensor) -> State:
        """Return the state after the compressed target, `message` (…, d), was sent."""
        return state

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """Return the receiver's estimate of the sender's update (…, d): to be used, and held until the next message."""
        return message


@dataclass(frozen=True, slots=True)
class ErrorFeedback(NoFeedback):
    """EF, also known as MEM-SGD: what was dropped is owed to the next update.

    Σ updates = Σ messages + memory, up to one rounding of each coordinate, so the model plus what is still owed moves as if nothing
    were compressed. With data that differ between nodes and a constant rate it ends near the optimum, not at it. The memory has the
    update's unit: with updates lr·gradient a changed rate needs nothing.

    Source: Stich, Cordonnier and Jaggi 2018 (arXiv:1809.07599); Karimireddy et al. 2019 (arXiv:1901.09847).
    """

    vectors: ClassVar[int] = 1

    def target(self, state: State, update: Tensor) -> Tensor:
        """Return the update plus the residual."""
        return update + state[0]

    def sent(self, state: State, update: Tensor, message: Tensor) -> State:
        """Return the new residual."""
        return (self.target(state, update) - message,)


@dataclass(frozen=True, slots=True)
class Ef21(NoFeedback):
    """EF21: send the compressed change of the gradient since the last estimate, h += Q(g − h) at both ends.

    With full gradients the estimates become exact and so does the optimum, at a constant rate and however the data differ. With
    small batches their noise is not averaged out: then `Ef21Sgdm`.

    Source: Richtárik, Sokolov and Fatkhullin 2021 (arXiv:2106.05203).
    """

    vectors: ClassVar[int] = 1

    def target(self, state: State, update: Tensor) -> Tensor:
        """Return the update's difference from h."""
        return update - state[0]

    def sent(self, state: State, update: Tensor, message: Tensor) -> State:
        """Return h plus the message."""
        return (state[0] + message,)

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """Return the receiver's copy of h, by the same addition."""
        return held + message


@parameters
class Ef21Sgdm(Ef21):
    """EF21 of a running mean of the gradients: v ← (1 − beta)·v + beta·g, then h += Q(v − h). The state is v and h.

    The mean takes the noise out before compression could keep it in, so small batches will do. v starts at the first gradient that is
    not zero: until then v = 0, which needs no flag in the state.

    Source: Fatkhullin, Tyurin and Richtárik 2023, Algorithm 1 (arXiv:2305.15155).
    """

    beta: PositiveShare = 0.1  # weight of the newest gradient, in (0, 1]; 1 is EF21
    vectors: ClassVar[int] = 2

    def target(self, state: State, update: Tensor) -> Tensor:
        """Return the new mean's difference from h."""
        return self._mean(state, update) - state[1]

    def sent(self, state: State, update: Tensor, message: Tensor) -> State:
        """Return the new mean, and h with the message added."""
        return self._mean(state, update), state[1] + message

    def _mean(self, state: State, update: Tensor) -> Tensor:
        begun = state[0].any(dim=-1, keepdim=True)
        return torch.where(begun, (1.0 - self.beta) * state[0] + self.beta * update, update)


@parameters
class EControl(Ef21):
    """EF21 with a memory e of what messages were short of: q = Q(control·e + g − h), h += q, e += g − h.

    The control keeps the two kinds of feedback from amplifying each other; with control 1 they do, and it is unstable. Exact for full
    gradients like EF21, and with noise n nodes gain what they should. The state is e and h.

    Source: Gao, Islamov and Stich 2023, Algorithm 2 (arXiv:2311.05645); there the control is δ/400 in theory and of order δ in practice.
    """

    control: PositiveShare = 0.02  # share of the memory in each message, in (0, 1]; about the compressor's contraction
    vectors: ClassVar[int] = 2

    def target(self, state: State, update: Tensor) -> Tensor:
        """Return a share of e, and the update's difference from h."""
        return self.control * state[0] + update - state[1]

    def sent(self, state: State, update: Tensor, message: Tensor) -> State:
        """Return the new e and h."""
        estimate = state[1] + message
        return state[0] + update - estimate, estimate


@parameters
class Dgc(NoFeedback):
    """Deep gradient compression: momentum is applied before compression, and sent coordinates lose their momentum.

    u ← m·u + g, v ← v + u, send Q(v), v −= Q(v), and u = 0 where something was sent: old momentum must not push on a coordinate that is
    up to date. Where everything is sent each round this is plain SGD, not momentum SGD. The state is u and v.

    Deviations: where the paper sets v to 0 at sent coordinates we subtract the message: the same if values are sent exactly, and
    what a quantizer takes off stays owed. No clipping and no warm-up of the ratio.

    Source: Lin et al. 2018 (arXiv:1712.01887).
    """

    momentum: ShareBelowOne = 0.9  # m, in [0, 1)
    vectors: ClassVar[int] = 2

    def target(self, state: State, update: Tensor) -> Tensor:
        """Return the new v."""
        return state[1] + (self.momentum * state[0] + update)

    def sent(self, state: State, update: Tensor, message: Tensor) -> State:
        """Return u and v without the sent coordinates."""
        momentum = torch.where(message == 0, self.momentum * state[0] + update, 0.0)
        return momentum, self.target(state, update) - message


@parameters
class DecoupledMomentum(ErrorFeedback):
    """DeMo: of the momentum, what is sent is taken out: M ← decay·M + g, q = Q(M), M −= q.

    Fast components of the momentum are shared at once, slow ones stay at home until they have grown. Made for the largest cosine
    coefficients of each chunk (`gossip.compress.select.dct.DctTopK`), and for a step along the sign of the mean message
    (`gossip.mix.all_gather.Psgd`).

    Source: Peng, Quesnelle and Kingma 2024, Algorithm 1 (arXiv:2411.19870).
    """

    decay: ShareBelowOne = 0.999  # decay of the momentum, in [0, 1); 1 would be error feedback

    def target(self, state: State, update: Tensor) -> Tensor:
        """Return the new M."""
        return update + self.decay * state[0]


FEEDBACKS: Mapping[str, Callable[..., NoFeedback]] = MappingProxyType(
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
