"""Parallel SGD of compressed updates: every node sends all others the same, and all replicas make the same step.

Shapes: d parameters, E numbers kept per edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from starling.gossip.api import Phase
from starling.gossip.bounds import PositiveShare, ShareBelowOne, parameters
from starling.gossip.compress.catalogue import QUANTIZERS, SELECTIONS
from starling.gossip.compress.feedback import FEEDBACKS, NoFeedback, State
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase, Origin

_ESTIMATES = ("ef21", "ef21_sgdm")  # schemes whose estimates follow the updates without bias
_PARAMETERS = {"ef21_sgdm": "beta", "econtrol": "control", "dgc": "momentum"}  # scheme -> key feedback_…


class Uncontrolled(Origin):
    """What a node without control variates keeps."""

    __slots__ = ()

    def corrected(self, gradient: Tensor) -> Tensor:
        """What local steps go along."""
        return gradient

    def stepped(self, _phase: Phase) -> Uncontrolled:
        """Local steps are done."""
        return self

    def update(self, x: Tensor) -> Tensor:
        """How far the local steps went down along gradients."""
        return self.origin - x

    def compared(self, _difference: Tensor) -> Uncontrolled:
        """`_difference` (…, d): the mean of all estimates less the own one."""
        return self

    def mixed(self, x: Tensor, _phase: Phase) -> Uncontrolled:
        """A round ends with the model x."""
        return Uncontrolled(x.clone())


@dataclass(frozen=True, slots=True)
class Controlled(Uncontrolled):
    """What a node with control variates keeps, in units of updates but for `variate`."""

    difference: Tensor  # (…, d) h̄ − h_i, of the mean of all estimates and the own one
    variate: Tensor  # (…, d) the same a unit of rate and local step: what local steps add to the gradient
    added: Tensor  # (…, d) what it made of this round's update

    @staticmethod
    def at(x: Tensor) -> Controlled:
        """At the beginning, with the model x."""
        return Controlled(x.clone(), torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x))

    def corrected(self, gradient: Tensor) -> Tensor:
        """With the control variate."""
        return gradient + self.variate

    def stepped(self, phase: Phase) -> Controlled:
        """Notes what the control variate moved the model by."""
        return replace(self, added=phase.local_steps * phase.lr * self.variate)

    def update(self, x: Tensor) -> Tensor:
        """Without what the control variate did."""
        return self.origin - x - self.added

    def compared(self, difference: Tensor) -> Controlled:
        """Kept for the next round."""
        return replace(self, difference=difference)

    def mixed(self, x: Tensor, phase: Phase) -> Controlled:
        """The next round has the variate of the difference; where no step was done it stays."""
        steps = phase.local_steps * phase.lr
        variate = self.difference / steps if steps else self.variate
        return Controlled(x.clone(), self.difference, variate, torch.zeros_like(x))


@dataclass(frozen=True, slots=True)
class Messages:
    """Swaps of updates. Satisfies `starling.gossip.api.Swapping`; E is the sender's state, our estimate and the peer's: 2·d to 4·d."""

    scheme: NoFeedback
    signs: bool = False  # what is shared is our own update and the mean of all

    def begin(self, origin: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(origin).repeat(*(1 for _ in origin.shape[:-1]), self.scheme.vectors + 2)

    def message(self, kept: Tensor, mine: Tensor, give: float | Tensor) -> Tensor:
        """The target of the feedback scheme."""
        return self.scheme.target(_open(kept, mine)[0], mine)

    def sent(self, kept: Tensor, message: Tensor, mine: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """−u and our estimate as the peers have it: of all n − 1 links each counts for the share w/(1 − w)."""
        state, own, theirs = _open(kept, mine)
        state, own = self.scheme.sent(state, mine, message), self.scheme.receive(own, message)
        change = give * own if self.signs else give * own - mine
        return torch.cat((*state, own, theirs), dim=-1), give / (1.0 - give) * change

    def received(self, kept: Tensor, message: Tensor, mine: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """The peer's estimate, weighted."""
        state, own, theirs = _open(kept, mine)
        theirs = self.scheme.receive(theirs, message)
        return torch.cat((*state, own, theirs), dim=-1), take * theirs

    def difference(self, kept: Tensor, message: Tensor, mine: Tensor) -> None:
        """Unknown: messages are updates, not models."""


@dataclass(frozen=True, slots=True)
class Estimates(Messages):
    """The same, with estimates of all updates that correct local steps. Satisfies `starling.gossip.api.Controlling`."""

    def flows(self, kept: Tensor) -> Tensor:
        """What is kept of k edges (…, k, E) -> (…, d), Σ_j (h_i − h_j)/(k + 1): the flows of a node sum to h_i − h̄."""
        _, own, theirs = _open(kept, kept[..., : kept.shape[-1] // (self.scheme.vectors + 2)])
        return (own - theirs).sum(-2) / (kept.shape[-2] + 1)


@parameters
class Psgd(MixerBase):
    """x <- x − (1/n)·Σ_j û_j, where û_j is what node j's local steps add up to, as far as its messages say.

    On the `complete` overlay, whose links all weigh 1/n. The compressor is that of the exchange. Nodes remain replicas of one model
    if each of them sends all its peers the same: whole vectors or the largest values, with codecs that do not round by chance. A mask or
    chance differs between edges; `ef` bounds what replicas then differ by, under `ef21` and its kin, and `demo`, it adds up.

    Exchanges are swaps of updates u, each edge with error feedback of its own, which leave (1/n)·Σ_j û_j, the same at every node but for
    the order of additions. Where a link is missing our own u counts instead of the peer's û, so the mean over nodes still moves by
    the mean update; but the peer never makes up for the missing message, and nothing pulls replicas together again.

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
        """Rules for the manifest; warnings."""
        mix, compress = agreed.mix, agreed.compress
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
                f"mix.control_variate: is a sum of steps lr·gradient, optimizer.kind must be sgd, got {agreed.optimizer.kind}; "
                "try `--set optimizer.kind=sgd`"
            )
        drawn = [compress.select] if SELECTIONS.facts(compress.select, trusted=True).random else []
        drawn += [compress.response] if QUANTIZERS.facts(compress.response, trusted=True).random else []
        if mix.feedback in {"ef21", "ef21_sgdm", "econtrol", "demo"} and drawn:
            raise ConfigError(
                f"mix.feedback: {mix.feedback} adds up messages, so replicas drift apart unless all peers receive the same, but "
                f"{' and '.join(drawn)} draw; try `--set compress.select=top_k --set compress.response=fp16`, or mix.feedback=ef"
            )
        return []

    @property
    def scheme(self) -> NoFeedback:
        """What happens to the part of an update that the exchange drops."""
        parameter = _PARAMETERS.get(self.feedback)
        given = {parameter: getattr(self, f"feedback_{parameter}")} if parameter else {}
        return FEEDBACKS[self.feedback](**given)

    @property
    def edge(self) -> Messages:
        """Swaps of updates; where these are control variates, with their flows."""
        kind = Estimates if self.control_variate else Messages
        return kind(self.scheme, signs=self.feedback == "demo")

    def start(self, x: Tensor) -> Uncontrolled:
        """Where the first round's update begins."""
        return Controlled.at(x) if self.control_variate else Uncontrolled(x.clone())

    def correct(self, state: Uncontrolled, gradient: Tensor) -> tuple[Tensor, Uncontrolled]:
        """The gradient, and the control variate if there is one."""
        return state.corrected(gradient), state

    def publish(self, state: Uncontrolled, x: Tensor, phase: Phase) -> tuple[Tensor, Uncontrolled]:
        """The model as it is."""
        return x, state.stepped(phase)

    def shared(self, state: Uncontrolled, x: Tensor) -> Tensor:
        """The update."""
        return state.update(x)

    def absorb(self, state: Uncontrolled, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Uncontrolled]:
        """The mean of all updates instead of our own; of `demo` the shared vector is our own and the mean."""
        if self.feedback == "demo":
            shared = phase.lr * (shared - state.update(x)).sign()
        mixed = state.origin - shared
        return mixed, state.mixed(mixed, phase)

    def corrected(self, state: Uncontrolled, flows: Tensor) -> Uncontrolled:
        """`flows` is the sum of h_i − h_j over all peers, as a share of all estimates."""
        return state.compared(-flows)


def _open(kept: Tensor, mine: Tensor) -> tuple[State, Tensor, Tensor]:
    """The sender's state, our own estimate, the peer's."""
    *state, own, theirs = kept.tensor_split(kept.shape[-1] // mine.shape[-1], dim=-1)
    return tuple(state), own, theirs
