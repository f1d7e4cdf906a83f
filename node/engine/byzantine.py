"""A Byzantine node, for experiments: `ByzantineSession` stands in for a `Session` and sends or learns from something else.

It exists only if the node's owner asked for an attack twice (`node.config.attack_consent`); `open_session` chooses once. The node trains
like every other, and an exchange changes its own model as an honest exchange would have. An attack is given the node's own vectors and
those received from peers, the newest of each of at most MAX_RECEIVED; those of fellow attackers, named by `crew`, are left out.

Attacks with target "model" replace the first d numbers of the shared vector, those with target "tracker" the next d. Where one vector is
published for all, an attack that depends on the receiver is made for one of the known peers, in turn. Where messages are swapped, the
attacker sends forged ones and learns nothing from those received.

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
from starling.gossip.errors import ConfigError
from starling.gossip.exchange.attestation import digest
from starling.gossip.mix.catalogue import swaps
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.node.engine.learner import Learner
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.session import Session
from starling.node.rpc.calls import (
    Answer,
    Answered,
    Apply,
    Commit,
    Done,
    Mix,
    Offer,
    Offered,
    Open,
    Publish,
    Published,
    Train,
    Trained,
)  # fmt: skip
from starling.node.tasks.api import Data
from starling.node.tasks.labelled import Batch, LabelledData
from starling.robust.attacks.api import Attack, Distort, Poison, Scene
from starling.robust.attacks.catalogue import ATTACKS

Sent = TypeVar("Sent", Offered, Answered, Published)

MAX_RECEIVED = 16
"""Peers whose newest vector an attacker keeps."""
CREW = "crew"
"""Of the parameters: peer ids of all attackers with commas between; the others are handed to the attack."""
TRACKED = frozenset({"gradient_tracking", "beer", "k_gt", "defended_tracking"})
"""Mixing algorithms whose shared vector is a model and a tracker."""
_LARGEST = 6e4  # what every codec can say, fp16 included: numbers that cannot be sent harm nobody
_SURE = (
    0.6  # of the clip: a longer difference may be a clipped one, which is shortened further till its codec can say it
)


class Adversary:
    """What an attacker knows, and the vectors, bytes and data it makes of that.

    Args:
        opening: names the attack, and the swarm.
        learner: of the honest session underneath.

    Raises:
        ConfigError: no such attack, a parameter it refuses, or it has nothing to act on here.
    """

    def __init__(self, opening: Open, learner: Learner) -> None:
        params = dict(opening.attack_params)
        crew = str(params.pop(CREW, ""))
        self._crew = frozenset(crew.split(",")) - {""} | {opening.node}
        self._attack: Attack = ATTACKS.build("attack_params", opening.attack, params, trusted=True)
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
        self._received: dict[str, Tensor] = {}
        self._forged: dict[str, Tensor] = {}
        self._before = learner.origin.clone()
        self._memory: Any = None
        self._sent = 0

    # --- what it sends -----------------------------------------------------------------------------------

    def forge(self, shared: Tensor, round: int, peer: str = "") -> Tensor:
        """(D,) what is sent instead of `shared` (D,).

        Args:
            shared: the honest vector; not changed.
            round: of the run.
            peer: the receiver; "" for a vector that is published for all.
        """
        if self._attack.targets == "wire":
            return shared
        own = shared[self._part].cpu()
        chance = generator(self._manifest.seed, "attack", self._node, self._sent)
        self._sent += 1
        messages, self._memory = self._attack.craft(self._memory, self._scene(own, round, peer), chance)
        sent = shared.clone()
        sent[self._part] = messages[0].nan_to_num().clamp(-_LARGEST, _LARGEST).to(shared)
        if self._attack.targets == "tracker":
            sent[self._part.stop :] = (
                _LARGEST  # claimed norms, where there are any: the largest passes every threshold on claims
            )
        if peer:
            self._keep(self._forged, peer, sent - shared)
        if self._manifest.pace.kind == "clock":
            self.start_round(shared)  # there are no rounds: steps are counted from one message to the next
        return sent

    def distort(self, reply: Sent) -> Sent:
        """The reply with the bytes that go out instead of an encoded vector's."""
        if self._attack.targets != "wire":
            return reply
        return structs.replace(reply, payload=cast("Distort", self._attack).distort(reply.payload))

    def distort_published(self, reply: Published) -> Published:
        """The same, with the digest of the bytes that go out: an attacker signs what it sends."""
        changed = self.distort(reply)
        return structs.replace(changed, digest=digest(changed.payload))

    def poison(self, data: Data) -> Data:
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

    # --- what it receives --------------------------------------------------------------------------------

    def start_round(self, shared: Tensor) -> None:
        """A round begins: local steps start from here."""
        self._before = shared.clone()

    def record(self, peer: str, vector: Tensor) -> None:
        """Keep a peer's shared vector (D,), unless it is a fellow attacker."""
        if peer not in self._crew:
            self._keep(self._received, peer, vector.detach().to(self._origin))

    def record_pulled(self, asked: Sequence[str], vectors: Tensor, present: Tensor) -> None:
        """Keep pulled vectors (k, D), in order of peer id, where present (k,)."""
        for place, peer in enumerate(sorted(asked)):
            if bool(present[place]):
                self.record(peer, vectors[place].clone())

    def record_offer(self, call: Answer, terms: Terms) -> None:
        """Decode a request before it is answered. A payload that cannot be decoded is refused by the answer."""
        if swaps(self._learner.mixer.edge):
            return
        shared = self._learner.shared()
        known = self._received.get(call.peer, shared)
        with suppress(ValueError):
            support, theirs = terms.heard(call.payload, shared.numel(), shared.dtype)
            self.record(call.peer, support.add(known, theirs.to(known) - support.take(known)))

    def correct(self, done: Effect | Swapped) -> Effect | Swapped:
        """What an honest exchange would have done to our own vector, as far as the peer's is known."""
        lie = self._forged.pop(done.peer, None)
        if lie is None or not bool(lie.any()):
            return done
        if isinstance(done, Swapped):
            return replace(done, mine=done.mine - lie)
        support, clip, shared = done.support, self._manifest.mix.clip_norm, self._learner.shared()
        known = self._received.get(done.peer, shared)
        if clip == 0.0 or float(done.value.norm()) < _SURE * clip:
            value = done.value + support.take(lie)
            self.record(done.peer, support.add(known, support.take(shared) + value - support.take(known)))
            return replace(done, value=value)
        return replace(done, value=support.take(known) - support.take(shared))

    # --- what it knows ------------------------------------------------------------------------------------

    def _scene(self, own: Tensor, round: int, peer: str) -> Scene:
        heard = {name: vector[self._part].cpu() for name, vector in self._received.items()}
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
        if len(kept) > MAX_RECEIVED:
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


class ByzantineSession:
    """A session with an adversary between it and the peers; all other calls are those of the session.

    Args:
        session: honest, just opened.
        opening: names the attack.

    Raises:
        ConfigError: as Adversary, or the data cannot be poisoned so.
    """

    def __init__(self, session: Session, opening: Open) -> None:
        self._session = session
        self.adversary = Adversary(opening, session.learner)
        session.learner.data = self.adversary.poison(session.learner.data)

    def __getattr__(self, name: str) -> Any:
        """Whatever is not overridden here."""
        return getattr(self._session, name)

    def train(self, call: Train) -> Trained | None:
        """Begin a round."""
        if self._session.frozen:
            self._session.thaw()
            self.adversary.start_round(self._session.learner.shared())
        return self._session.train(call)

    def mix(self, call: Mix) -> Done:
        """Combine; the attacker knows what it received from now on."""
        session, frozen = self._session, self._session.frozen
        if frozen:
            self.adversary.record_pulled(call.asked, *session.gathering.told(call.asked))
        done = session.mix(call)
        if frozen:
            self.adversary.start_round(session.learner.shared())
        return done

    def publish(self, call: Publish) -> Published:
        """A forged vector, for all who pull it."""
        return self.adversary.distort_published(self._session.publish_vector(call, self._forged()))

    def offer(self, call: Offer) -> Offered:
        """Initiator: forged values."""
        return self.adversary.distort(self._session.offer_vector(call, self._forged(call.peer)))

    def answer(self, call: Answer) -> Answered:
        """Responder: a forged difference, made when the request is known."""
        self.adversary.record_offer(call, self._session.exchanges.terms)
        return self.adversary.distort(self._session.answer_vector(call, self._forged(call.peer)))

    def apply(self, call: Apply) -> Done:
        """Initiator's commit."""
        return self._session.take(self.adversary.correct(self._session.exchanges.apply(call)))

    def commit(self, call: Commit) -> Done:
        """Responder's commit."""
        return self._session.take(self.adversary.correct(self._session.exchanges.commit(call)))

    def _forged(self, peer: str = "") -> Tensor:
        return self.adversary.forge(self._session.readable(), self._session.round, peer)


def open_session(opening: Open, clock: Callable[[], float], csprng: Csprng) -> Session:
    """The session of an honest node, or of the Byzantine one that its owner asked for.

    Raises:
        ConfigError: the opening cannot be used.
    """
    session = Session(opening, clock, csprng)
    return cast("Session", ByzantineSession(session, opening)) if opening.attack else session


def _number(peer: str) -> int:
    return derive(0, "number", peer)
