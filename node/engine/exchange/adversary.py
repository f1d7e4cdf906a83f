"""A Byzantine node's attack, for experiments: forged vectors and bytes, or poisoned data.

It exists only if the node's owner consented to an attack twice (`node.config.attack_consent`). An attack is given the node's own
vectors and
the newest of each of at most MAX_RECEIVED peers, without those of fellow attackers, named by `crew`.

Attacks with target "vector" replace the first d numbers of the shared vector, those with target "tracker" the next d, and those with
target "memory" what the optimiser remembers. Where one vector is published for all, an attack that depends on the receiver is made for one
of the known peers, in turn. Where messages are swapped, the attacker sends forged ones and learns nothing from those received.

Shapes: d parameters, D numbers of the shared vector, h vectors known, k of one exchange.
"""

from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from msgspec import structs
from torch import Tensor

from starling.gossip.api import Effect, Swapped
from starling.gossip.compress.support import Support
from starling.gossip.errors import ConfigError
from starling.gossip.limits import keep
from starling.gossip.replica import Replica
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.node.config import consent
from starling.node.rpc import calls
from starling.node.tasks.api import Data
from starling.node.tasks.labelled import LabelledData, Poisoned
from starling.robust.attacks.api import Attack, Distort, Poison, Scene
from starling.robust.attacks.catalogue import ATTACKS
from starling.robust.attacks.memory import Reversed

Sent = TypeVar("Sent", calls.Offered, calls.Answered, calls.Published)

MAX_RECEIVED = 16  # peers whose newest vector an attacker stores
CREW = "crew"  # parameter of every attack: comma-separated peer ids of all attackers
TRACKED = frozenset({"gradient_tracking", "beer", "k_gt", "defended_tracking"})
"""Mixing algorithms whose shared vector is a model and a tracker."""
_LARGEST = 6e4  # largest number that every codec can encode, fp16 included
_SURE = 0.6  # share of the clip beyond which a difference may have been clipped, as codecs shorten it further


def poisoned(open_request: calls.Open, data: Data) -> Data:
    """Return a node's training samples, poisoned if its attack says so.

    Raises ConfigError: the attack cannot be made, or the samples have no labels or lack a class that it needs.
    """
    attack = _attack(open_request) if open_request.attack else None
    if attack is None or attack.targets != "data":
        return data
    if not isinstance(data, LabelledData):
        raise ConfigError("attack: needs samples with labels; try task.kind = digits or images")
    classes = 1 + int(max(data.y.max(), data.test_y.max()))
    poison = cast("Poison", attack).poison
    try:
        poison(data.x[:1].clone(), data.y[:1], classes)
    except ValueError as error:
        raise ConfigError(f"attack_params: {error}") from error
    return Poisoned(data, classes, poison)


def _attack(open_request: calls.Open) -> Attack:
    """Return the configured attack. Raises ConfigError if no node of this swarm can make it."""
    params = {key: value for key, value in open_request.attack_params.items() if key != CREW}
    consent.find_module("attack", open_request.attack, open_request.code)
    attack: Attack = ATTACKS.build("attack_params", open_request.attack, params, trusted=True)
    if open_request.attack == "sleeper" and not open_request.manifest.pace.rounds:
        raise ConfigError("attack: sleeper wakes after a share of the rounds, and pace.rounds = 0 is endless; try `--set pace.rounds=400`")
    if attack.targets == "data" and open_request.privacy.noise:
        raise ConfigError(f"attack: {open_request.attack} poisons data, which has no effect with privacy.noise; set privacy.noise=0")
    return attack


class Adversary:
    """An attacker's knowledge, and the vectors and bytes it makes. Raises ConfigError if the attack cannot be made here.

    Attributes:
        targets: what the attack forges.
    """

    def __init__(self, open_request: calls.Open, replica: Replica) -> None:
        self._attack = _attack(open_request)
        self.targets = self._attack.targets
        self._crew = frozenset(str(open_request.attack_params.get(CREW, "")).split(",")) - {""} | {open_request.node}
        self._node, self._manifest = open_request.node, open_request.manifest
        self._replica, self._origin = replica, replica.origin
        dim = replica.layout.dim
        self._part = slice(0, dim)
        if self.targets == "tracker":
            if open_request.manifest.mix.kind not in TRACKED:
                raise ConfigError(
                    f"attack: {open_request.attack} forges a tracker, and mix.kind = {open_request.manifest.mix.kind!r} sends none; "
                    f"it needs one of {', '.join(sorted(TRACKED))}"
                )
            self._part = slice(dim, 2 * dim)
        if self.targets == "memory":
            if replica.remembered is None or replica.remembered.home:
                raise ConfigError(
                    f"attack: {open_request.attack} forges what optimisers remember, which this swarm does not exchange; it needs "
                    "mix.kind = moments or pet, and adamw or muon"
                )
            replica.remembered = replace(replica.remembered, forged=cast("Reversed", self._attack).forged)
        self._received: dict[str, Tensor] = {}
        self._forged: dict[str, Tensor] = {}
        self._before = self._origin.clone()
        self._memory: Any = None
        self._sent = 0

    def forge(self, shared: Tensor, round: int, peer: str = "") -> Tensor:
        """Return (D,) to send instead of `shared` (D,), which is not changed; `peer` is "" for a vector published for all."""
        if self.targets in ("wire", "memory"):
            return shared
        own = shared[self._part].cpu()
        sent = shared.clone()
        sent[self._part] = self._crafted(own, round, peer).to(shared)
        if self.targets == "tracker":
            sent[self._part.stop :] = _LARGEST  # claimed norms, where there are any, are made to pass every threshold
        if peer:
            keep(self._forged, peer, sent - shared, MAX_RECEIVED)
        if self._manifest.pace.kind == "clock":
            self.start_round(shared)  # without rounds, steps are counted from one message to the next
        return sent

    def _crafted(self, own: Tensor, round: int, peer: str) -> Tensor:
        """Return (d,) of the attack, in numbers that every codec can encode."""
        chance = generator(self._manifest.seed, "attack", self._node, self._sent)
        self._sent += 1
        messages, self._memory = self._attack.craft(self._memory, self._scene(own, round, peer), chance)
        return messages[0].nan_to_num().clamp(-_LARGEST, _LARGEST)

    def distort(self, reply: Sent) -> Sent:
        """Return the reply with the bytes to send instead of an encoded vector's."""
        if self.targets != "wire":
            return reply
        return structs.replace(reply, payload=cast("Distort", self._attack).distort(reply.payload))

    def start_round(self, shared: Tensor) -> None:
        """Count local steps from this vector."""
        self._before = shared.clone()

    def record(self, peer: str, vector: Tensor) -> None:
        """Store a peer's shared vector (D,), unless it is a fellow attacker."""
        if peer not in self._crew:
            keep(self._received, peer, vector.detach().to(self._origin), MAX_RECEIVED)

    def record_values(self, peer: str, support: Support, theirs: Tensor) -> None:
        """Store the values (k,) of a peer's vector on a support that it reported."""
        known = self._received.get(peer)
        known = self._replica.shared() if known is None else known
        self.record(peer, support.add(known, theirs.to(known) - support.take(known)))

    def correct(self, done: Effect | Swapped) -> Effect | Swapped:
        """Return the effect of the honest exchange on our own vector, as far as the peer's is known."""
        lie = self._forged.pop(done.peer, None)
        if lie is None or not bool(lie.any()):
            return done
        if isinstance(done, Swapped):
            return replace(done, local=done.local - lie)
        support, clip, shared = done.support, self._manifest.mix.clip_norm, self._replica.shared()
        known = self._received.get(done.peer, shared)
        if clip == 0.0 or float(done.value.norm()) < _SURE * clip:
            value = done.value + support.take(lie)
            self.record(done.peer, support.add(known, support.take(shared) + value - support.take(known)))
            return replace(done, value=value)
        return replace(done, value=support.take(known) - support.take(shared))

    def _scene(self, own: Tensor, round: int, peer: str) -> Scene:
        received = {name: vector[self._part].cpu() for name, vector in self._received.items()}
        names = sorted(received)
        receiver = peer if peer or not names else names[round % len(names)]
        before = self._before[self._part].cpu()
        return Scene(
            own=own,
            before=before,
            start=self._origin[self._part].cpu(),
            honest=torch.stack([own, *(received[name] for name in names)]),
            members=torch.tensor([_number(name) for name in (self._node, *names)]),
            receivers=received.get(receiver, own)[None],
            index=torch.tensor([_number(receiver)]),
            gradient=own if self.targets == "tracker" else before - own,
            round=round,
            rounds=self._manifest.pace.rounds,
            attackers=len(self._crew),
            nodes=len(self._crew) + max(len(names), self._manifest.pace.quorum - len(self._crew), 1),
            seed=self._manifest.seed,
        )


def _number(peer: str) -> int:
    return derive(0, "number", peer)
