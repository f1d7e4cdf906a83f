"""A node that lies, for experiments: what it tells, sends and learns from instead. Never made unless its owner asked for it twice.

It trains like everybody and takes its own lies for nothing: an exchange does to its own model what it would have done had it told the
truth. What it knows are its own vectors and what peers told it, at most MAX_HEARD of them, the newest of each. What fellow attackers
told, whom `crew` names, it does not believe.

Attacks of vectors lie about the model, which is the first d numbers of the shared vector; attacks of trackers about the tracker, which
is the next d. Where one vector is published for whoever asks, an attack that has something else for each receiver is made for one of
the peers heard, in turn. Messages that are swapped are lies too, but nothing is heard from them.

Shapes: d parameters, D numbers of the shared vector, h vectors known, k of one exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from msgspec import structs
from torch import Generator, Tensor

from starling.gossip.api import Effect, Swapped
from starling.gossip.catalogue import build
from starling.gossip.errors import ConfigError
from starling.gossip.exchange.attestation import digest
from starling.gossip.mix.catalogue import swaps
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.node.engine.learner import Learner
from starling.node.rpc.calls import Answer, Answered, Offered, Open, Published
from starling.node.tasks.api import Data
from starling.node.tasks.labelled import Batch, LabelledData
from starling.robust.attacks.api import Attack, Distort, Poison, Scene
from starling.robust.attacks.catalogue import ATTACKS

Sent = TypeVar("Sent", Offered, Answered, Published)

MAX_HEARD = 16
"""Vectors of peers that a liar keeps."""
CREW = "crew"
"""Of the parameters: peer ids of all attackers with commas between; the others are handed to the attack."""
TRACKED = frozenset({"gradient_tracking", "beer", "k_gt", "defended_tracking"})
"""Mixing algorithms whose shared vector is a model and a tracker."""
_LARGEST = 6e4  # what every codec can say, fp16 included: numbers that cannot be sent harm nobody
_SURE = (
    0.6  # of the clip: a longer difference may be a clipped one, which is shortened further till its codec can say it
)


class Hostile:
    """What a liar remembers, and what it makes of that.

    Args:
        opening: names the attack, and the swarm.
        learner: what it would be if it were honest.

    Raises:
        ConfigError: no such attack, a parameter it refuses, or it has nothing to act on here.
    """

    def __init__(self, opening: Open, learner: Learner) -> None:
        params = dict(opening.attack_params)
        crew = str(params.pop(CREW, ""))
        self._crew = frozenset(crew.split(",")) - {""} | {opening.node}
        self._attack: Attack = build("attack_params", ATTACKS, opening.attack, params)
        if opening.attack == "sleeper" and not opening.manifest.pace.rounds:
            raise ConfigError(
                "attack: sleeper wakes after a share of the rounds, and pace.rounds = 0 is endless; try `--set pace.rounds=400`"
            )
        if self._attack.targets == "data" and opening.privacy.noise:
            raise ConfigError(
                f"attack: {opening.attack} poisons data, which privacy.noise takes unpoisoned; set privacy.noise=0"
            )
        self._node, self._manifest = opening.node, opening.manifest
        self._learner, self._origin = learner, learner.origin
        dim = learner.layout.dim
        self._part = slice(0, dim)
        if self._attack.targets == "tracker":
            if opening.manifest.mix.kind not in TRACKED:
                raise ConfigError(
                    f"attack: {opening.attack} lies about a tracker, and mix.kind = {opening.manifest.mix.kind!r} tells none; "
                    f"it needs one of {', '.join(sorted(TRACKED))}"
                )
            self._part = slice(dim, 2 * dim)
        self._heard: dict[str, Tensor] = {}
        self._lies: dict[str, Tensor] = {}
        self._before = learner.origin.clone()
        self._memory: Any = None
        self._told = 0

    # --- what it says -------------------------------------------------------------------------------------

    def tells(self, shared: Tensor, round: int, peer: str = "") -> Tensor:
        """(D,) what is told instead of `shared` (D,).

        Args:
            shared: the truth; not changed.
            round: of the run.
            peer: to whom; "" is whoever asks.
        """
        if self._attack.targets == "wire":
            return shared
        own = shared[self._part].cpu()
        chance = generator(self._manifest.seed, "attack", self._node, self._told)
        self._told += 1
        messages, self._memory = self._attack.tell(self._memory, self._scene(own, round, peer), chance)
        told = shared.clone()
        told[self._part] = messages[0].nan_to_num().clamp(-_LARGEST, _LARGEST).to(shared)
        if self._attack.targets == "tracker":
            told[self._part.stop :] = _LARGEST  # norms, where there are any: a threshold that minds only claims is none
        if peer:
            self._keep(self._lies, peer, told - shared)
        if self._manifest.pace.kind == "clock":
            self.mixed(shared)  # there are no rounds: steps are counted from one word to the next
        return told

    def sends(self, reply: Sent) -> Sent:
        """The reply with the bytes that go out instead of an encoded vector's."""
        if self._attack.targets != "wire":
            return reply
        return structs.replace(reply, payload=cast("Distort", self._attack).distort(reply.payload))

    def publishes(self, reply: Published) -> Published:
        """Likewise, with the digest that goes with them: a liar signs what it sends."""
        sent = self.sends(reply)
        return structs.replace(sent, digest=digest(sent.payload))

    def learns(self, data: Data) -> Data:
        """The node's samples as it learns from them.

        Raises:
            ConfigError: they have no labels, or not the classes that the attack is about.
        """
        if self._attack.targets != "data":
            return data
        if not isinstance(data, LabelledData):
            raise ConfigError("attack: needs samples with labels; try task.kind = digits or images")
        classes = 1 + int(max(data.y.max(), data.test_y.max()))
        poison = cast("Poison", self._attack).poison
        try:
            poison(data.x[:1].clone(), data.y[:1], classes)
        except ValueError as error:
            raise ConfigError(f"attack_params: {error}") from error
        return Poisoned(data, classes, poison)

    # --- what it hears ------------------------------------------------------------------------------------

    def mixed(self, shared: Tensor) -> None:
        """A round begins: local steps start from here."""
        self._before = shared.clone()

    def hears(self, peer: str, vector: Tensor) -> None:
        """What a peer told of all of its shared vector (D,)."""
        if peer not in self._crew:
            self._keep(self._heard, peer, vector.detach().to(self._origin))

    def gathered(self, asked: Sequence[str], told: Tensor, present: Tensor) -> None:
        """What those we asked told, (k, D) in order of peer id, and whether they did, (k,)."""
        for place, peer in enumerate(sorted(asked)):
            if bool(present[place]):
                self.hears(peer, told[place].clone())

    def overhears(self, call: Answer, terms: Terms) -> None:
        """What a peer offers, before it is answered: a liar answers when it knows. If it is no good, whoever answers will say so."""
        if swaps(self._learner.mixer.edge):
            return
        shared = self._learner.shared()
        known = self._heard.get(call.peer, shared)
        with suppress(ValueError):
            support, theirs = terms.heard(call.payload, shared.numel(), shared.dtype)
            self.hears(call.peer, support.add(known, theirs.to(known) - support.take(known)))

    def takes(self, done: Effect | Swapped) -> Effect | Swapped:
        """What an exchange does to ourselves: as if we had told the truth, as far as we know what the peer has."""
        lie = self._lies.pop(done.peer, None)
        if lie is None or not bool(lie.any()):
            return done
        if isinstance(done, Swapped):
            return replace(done, mine=done.mine - lie)
        support, clip, shared = done.support, self._manifest.mix.clip_norm, self._learner.shared()
        known = self._heard.get(done.peer, shared)
        if clip == 0.0 or float(done.value.norm()) < _SURE * clip:
            value = done.value + support.take(lie)
            self.hears(done.peer, support.add(known, support.take(shared) + value - support.take(known)))
            return replace(done, value=value)
        return replace(done, value=support.take(known) - support.take(shared))

    # --- what it knows ------------------------------------------------------------------------------------

    def _scene(self, own: Tensor, round: int, peer: str) -> Scene:
        heard = {name: vector[self._part].cpu() for name, vector in self._heard.items()}
        names = sorted(heard)
        receiver = peer if peer or not names else names[round % len(names)]
        before = self._before[self._part].cpu()
        return Scene(
            own=own,
            before=before,
            start=self._origin[self._part].cpu(),
            honest=torch.stack([own, *(heard[name] for name in names)]),
            members=torch.tensor([_number(name) for name in (self._node, *names)]),
            receivers=heard.get(receiver, own)[None],
            index=torch.tensor([_number(receiver)]),
            gradient=own if self._attack.targets == "tracker" else before - own,
            round=round,
            rounds=self._manifest.pace.rounds,
            bad=len(self._crew),
            nodes=len(self._crew) + max(len(names), self._manifest.pace.quorum - len(self._crew), 1),
            seed=self._manifest.seed,
        )

    @staticmethod
    def _keep(kept: dict[str, Tensor], peer: str, vector: Tensor) -> None:
        kept.pop(peer, None)
        kept[peer] = vector  # now the newest
        if len(kept) > MAX_HEARD:
            del kept[next(iter(kept))]


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Samples with labels as an attacker learns from them; satisfies `starling.node.tasks.api.Data`. The held-out ones stay as they are.

    Args:
        data: the honest ones.
        classes: labels are below.
        change: what becomes of a batch.
    """

    data: LabelledData
    classes: int
    change: Callable[[Tensor, Tensor, int], Batch]

    @property
    def samples(self) -> int:
        """Training samples held here."""
        return self.data.samples

    def batch(self, size: int, generator: Generator) -> Batch:
        """The honest draw, changed."""
        x, y = self.data.batch(size, generator)
        return self.change(x, y, self.classes)

    def held_out(self, size: int) -> Iterator[Batch]:
        """The test split in order."""
        return self.data.held_out(size)


def hostile(opening: Open, learner: Learner) -> Hostile | None:
    """The liar that the node's owner asked for, its data poisoned; None: it is honest.

    Raises:
        ConfigError: as Hostile.
    """
    if not opening.attack:
        return None
    made = Hostile(opening, learner)
    learner.data = made.learns(learner.data)
    return made


def _number(peer: str) -> int:
    return derive(0, "number", peer)
