"""Parallel SGD of compressed updates: every node sends all others the same, and all replicas make the same step.

Shapes: d parameters, E numbers kept per edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from starling.gossip.api import Phase
from starling.gossip.bounds import PositiveShare, ShareBelowOne, parameters
from starling.gossip.compress.feedback import FEEDBACKS, NoFeedback, State
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase, Origin

_ESTIMATES = ("ef21", "ef21_sgdm")  # schemes whose estimates follow the updates without bias
_PARAMETERS = {"ef21_sgdm": "beta", "econtrol": "control", "dgc": "momentum"}  # scheme -> its parameter, key feedback_…


@dataclass(frozen=True, slots=True)
class Uncontrolled(Origin):
    """State of a node without control variates."""

    published: Tensor  # (…, d) the model after the local steps that messages are about

    @classmethod
    def at(cls, x: Tensor) -> Self:
        """Return the initial state with the model x."""
        return cls(x.clone(), x.clone())

    def corrected(self, gradient: Tensor) -> Tensor:
        """Return the direction of local steps."""
        return gradient

    def stepped(self, x: Tensor, _phase: Phase) -> Self:
        """Return the state after local steps that led to x."""
        return replace(self, published=x.clone())

    def update(self) -> Tensor:
        """Return the update of the local steps, positive along gradients."""
        return self.origin - self.published

    def compared(self, _difference: Tensor) -> Self:
        """`_difference` (…, d): the mean of all estimates less the own one."""
        return self

    def mixed(self, origin: Tensor, _phase: Phase) -> Self:
        """End a round with the model `origin`, at all nodes."""
        return replace(self, origin=origin)


@dataclass(frozen=True, slots=True)
class Controlled(Uncontrolled):
    """State of a node with control variates, in units of updates but for `variate`."""

    difference: Tensor  # (…, d) h̄ − h_i, of the mean of all estimates and the own one
    variate: Tensor  # (…, d) the same per unit of rate and local step: the correction that local steps add to the gradient
    added: Tensor  # (…, d) the control variate's part of this round's update

    @classmethod
    def at(cls, x: Tensor) -> Self:
        """Return the initial state with the model x."""
        return cls(x.clone(), x.clone(), torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x))

    def corrected(self, gradient: Tensor) -> Tensor:
        """Add the control variate."""
        return gradient + self.variate

    def stepped(self, x: Tensor, phase: Phase) -> Self:
        """Notes what the control variate moved the model by."""
        return replace(self, published=x.clone(), added=phase.local_steps * phase.lr * self.variate)

    def update(self) -> Tensor:
        """Return the update without the control variate's part."""
        return self.origin - self.published - self.added

    def compared(self, difference: Tensor) -> Self:
        """Store the difference for the next round."""
        return replace(self, difference=difference)

    def mixed(self, origin: Tensor, phase: Phase) -> Self:
        """Set the next round's variate from the difference; without local steps it stays."""
        steps = phase.local_steps * phase.lr
        variate = self.difference / steps if steps else self.variate
        return replace(self, origin=origin, variate=variate, added=torch.zeros_like(origin))


@dataclass(frozen=True, slots=True)
class Messages:
    """Swaps of updates. Satisfies `starling.gossip.api.Common`; E is the sender's state, our estimate and the peer's: 2·d to 4·d."""

    scheme: NoFeedback
    signs: bool = False  # the step uses signs of the sum of sent messages, whichever are missing

    def begin(self, origin: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(origin).repeat(*(1 for _ in origin.shape[:-1]), self.scheme.vectors + 2)

    def message(self, edge_state: Tensor, local: Tensor, give: float | Tensor) -> Tensor:
        """Return the target of the feedback scheme."""
        return self.scheme.target(_open(edge_state, local)[0], local)

    def sent(self, edge_state: Tensor, message: Tensor, local: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """−u and our estimate as the peers have it: of all n − 1 links each counts for the share w/(1 − w)."""
        state, own, theirs = _open(edge_state, local)
        state, own = self.scheme.sent(state, local, message), self.scheme.receive(own, message)
        change = give * own if self.signs else give * own - local
        return torch.cat((*state, own, theirs), dim=-1), give / (1.0 - give) * change

    def received(self, edge_state: Tensor, message: Tensor, local: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the peer's estimate, weighted."""
        state, own, theirs = _open(edge_state, local)
        theirs = self.scheme.receive(theirs, message)
        return torch.cat((*state, own, theirs), dim=-1), take * theirs

    def settled(self, state: Uncontrolled) -> Tensor:
        """Return the model that all move by the mean, without what local steps have done since."""
        return state.origin

    def base(self, local: Tensor) -> Tensor:
        """Return our own update; for signs nothing."""
        return torch.zeros_like(local) if self.signs else local

    def estimates(self, edge_state: Tensor) -> tuple[Tensor, Tensor]:
        """Return this node's estimate as the peers have it, and the peer's."""
        _, own, theirs = _open(edge_state, edge_state[..., : edge_state.shape[-1] // (self.scheme.vectors + 2)])
        return own, theirs

    def difference(self, edge_state: Tensor, message: Tensor, local: Tensor) -> None:
        """Return None: messages are updates, so the difference of models is unknown."""


@dataclass(frozen=True, slots=True)
class Estimates(Messages):
    """Messages with estimates of all updates that correct local steps. Satisfies `starling.gossip.api.Controlling`."""

    def flows(self, edge_state: Tensor) -> Tensor:
        """Map states of k edges (…, k, E) -> (…, d), Σ_j (h_i − h_j)/(k + 1): the flows of a node sum to h_i − h̄."""
        own, theirs = self.estimates(edge_state)
        return (own - theirs).sum(-2) / (edge_state.shape[-2] + 1)


@parameters
class Psgd(MixerBase):
    """x <- x − (1/n)·Σ_j û_j, where û_j is what node j's local steps add up to, as far as its messages say.

    On the `complete` overlay, whose links all weigh 1/n. The compressor is that of the exchange. Every node sends all its peers the same
    message: what selectors and codecs draw, they draw by the sender and the round. û is added in the order of peer ids. So nodes remain
    replicas of one model, bit for bit, with every compressor.

    Exchanges are swaps of updates u, each edge with error feedback of its own, so that a peer that missed a message is not owed what
    others have. Where a link is missing our own u counts instead of the peer's û, so the mean over nodes still moves by the mean update;
    but the peer never makes up for the missing message, and nothing pulls replicas together again.

    With `pace.overlap` the local steps of the next round begin at x − u, before the others' updates are known, which are taken in after
    them: x <- x + u − (1/n)·Σ_j û_j, one round stale.

    With whole exact messages this is parallel SGD, with K local steps local SGD. CocktailSGD is `ef` with a mask, top-k and few bits.
    With `demo` it is DeMo: x <- x − lr·sign(Σ_j û_j), made for `dct_top_k`: every coordinate moves by lr or not at all. Where data
    differ the sign of a mean is not the mean of anything, and the optimum is missed.

    With `control_variate` local steps go along g + (h̄ − h_i)/(Kη), h_i the estimate that all have of node i's update and h̄ their mean,
    so that K local steps on data that differ do not drift apart; updates are counted without that term. With `ef21_sgdm` it is SCAFCOM
    with all members in the place of its server (Huang, Li and Li 2023, arXiv:2308.08165).

    Source: Stich, Cordonnier and Jaggi 2018 (arXiv:1809.07599); the schemes of `starling.gossip.compress.feedback` name theirs.

    Args:
        feedback: one of `FEEDBACKS`. Its update is lr·gradient summed over local steps.
        feedback_beta: of ef21_sgdm, weight of the newest update, in (0, 1].
        feedback_control: of econtrol, share of the memory in each message, in (0, 1].
        feedback_momentum: of dgc, in [0, 1).
        control_variate: whether local steps are corrected, for ef21 and ef21_sgdm.
    """

    feedback: Literal["none", "ef", "ef21", "ef21_sgdm", "econtrol", "dgc", "demo"] = "ef"
    feedback_beta: PositiveShare = 0.1
    feedback_control: PositiveShare = 0.02
    feedback_momentum: ShareBelowOne = 0.9
    control_variate: bool = False

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return warnings."""
        mix = agreed.mix
        if agreed.overlay.kind != "complete":
            raise ConfigError(
                f"overlay.kind: psgd sends every update to all members, got {agreed.overlay.kind}; try `--set overlay.kind=complete`"
            )
        for feedback, key in _PARAMETERS.items():
            own = f"feedback_{key}"
            if mix.feedback != feedback and getattr(mix, own) != getattr(Psgd(), own):
                raise ConfigError(
                    f"mix.{own}: {mix.feedback} has no such key; only {feedback} takes it, e.g. `--set mix.feedback={feedback}`; "
                    "or leave it out"
                )
        if mix.control_variate and mix.feedback not in _ESTIMATES:
            raise ConfigError(
                f"mix.control_variate: needs an estimate of every node's update, mix.feedback = ef21 or ef21_sgdm, got {mix.feedback}; "
                "try `--set mix.feedback=ef21_sgdm`"
            )
        if mix.control_variate and agreed.optimizer.kind != "sgd":
            raise ConfigError(
                f"mix.control_variate: assumes steps lr·gradient, so optimizer.kind must be sgd, got {agreed.optimizer.kind}; "
                "try `--set optimizer.kind=sgd`"
            )
        if mix.control_variate and agreed.pace.overlap:
            raise ConfigError(
                "pace.overlap: a control variate is from the previous round, must be false with mix.control_variate; leave it out"
            )
        return []

    @property
    def scheme(self) -> NoFeedback:
        """Error feedback of the part of an update that the exchange drops."""
        parameter = _PARAMETERS.get(self.feedback)
        given = {parameter: getattr(self, f"feedback_{parameter}")} if parameter else {}
        return FEEDBACKS[self.feedback](**given)

    @property
    def edge(self) -> Messages:
        """Swaps of updates; where these are control variates, with their flows."""
        kind = Estimates if self.control_variate else Messages
        return kind(self.scheme, signs=self.feedback == "demo")

    def start(self, x: Tensor) -> Uncontrolled:
        """Return the state before the first round's update."""
        return Controlled.at(x) if self.control_variate else Uncontrolled.at(x)

    def correct(self, state: Uncontrolled, gradient: Tensor) -> tuple[Tensor, Uncontrolled]:
        """Return the gradient, and the control variate if there is one."""
        return state.corrected(gradient), state

    def publish(self, state: Uncontrolled, x: Tensor, phase: Phase) -> tuple[Tensor, Uncontrolled]:
        """Return the model unchanged."""
        return x, state.stepped(x, phase)

    def shared(self, state: Uncontrolled, x: Tensor) -> Tensor:
        """Return the update, of the local steps done when it was published."""
        return state.update()

    def absorb(self, state: Uncontrolled, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Uncontrolled]:
        """Return the mean of all updates instead of our own; local steps done since that was published stay."""
        step = phase.lr * shared.sign() if self.feedback == "demo" else shared
        origin = state.origin - step
        return origin + (x - state.published), state.mixed(origin, phase)

    def corrected(self, state: Uncontrolled, flows: Tensor) -> Uncontrolled:
        """`flows` is the sum of h_i − h_j over all peers, as a share of all estimates."""
        return state.compared(-flows)


def _open(edge_state: Tensor, local: Tensor) -> tuple[State, Tensor, Tensor]:
    """Return the sender's state, our own estimate, the peer's."""
    *state, own, theirs = edge_state.tensor_split(edge_state.shape[-1] // local.shape[-1], dim=-1)
    return tuple(state), own, theirs
