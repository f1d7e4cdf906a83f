"""One node's model, changed by local steps and by the mixing algorithm.

A local step that would leave a number that is not finite is undone: loss and direction are checked before the step, the parameters after
it. So no NaN is ever sent to a peer, and a faulty batch costs one step.

On one machine, with the same number of threads (which adapts unless the owner sets `threads`), equal manifest, node label and exchanges
give the same bits.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from torch import Generator, Tensor, nn

from starling.gossip.api import Effect, Losses, Phase, Swapped
from starling.gossip.compress.support import Full
from starling.gossip.errors import ConfigError
from starling.gossip.mix import edge_ledger
from starling.gossip.mix.base import PlainAveraging, origin
from starling.gossip.mix.catalogue import broadcasts, controls, pulls, replaces, swaps
from starling.gossip.mix.edge_ledger import Ledger
from starling.gossip.mix.encoded_effects import EncodedEffect, decoded
from starling.gossip.mix.gather import Gather, Gathered
from starling.gossip.mix.personal import SHARES, Personal, chosen
from starling.gossip.mix.pet import Pet
from starling.gossip.mix.rule_memory import assign_slots, cleared, slot_of
from starling.gossip.mix.seeds import MOST_NUMBERS, Seeds, slope
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.gossip.vector import bind_gradients, bind_parameters, finite, layout, rebind, release_gradients
from starling.node.catalogues import task
from starling.node.config import consent, memory
from starling.node.config.large import LARGE
from starling.node.config.schema import NumericsSection
from starling.node.config.weight import weight
from starling.node.engine import ahead, heap, island, tensor_file
from starling.node.engine import stage as stages
from starling.node.engine.compression import selector_facts
from starling.node.engine.devices import device
from starling.node.engine.island import Island, Whole
from starling.node.engine.measured_model import MeasuredModel
from starling.node.engine.mixing import mixer_of, settled_edges
from starling.node.engine.model_file import facts
from starling.node.engine.noise_scale import NoiseScale
from starling.node.engine.numerics import Gradients
from starling.node.engine.optimizers import Optimizer, optimizer_of, phase, ramp, schedule
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.privacy.dp_sgd import PrivateGradients
from starling.node.engine.rehearsal import calling, rehearse
from starling.node.engine.start import initial
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Data, Source, taken_notes
from starling.node.tasks.evaluate import BATCHES, Result, comparing, estimate, evaluate
from starling.node.tasks.reserved import Reserved, data_of

EVALUATION_BATCH = 256  # held-out samples of a slice: about the work of a local step
_X = "x"
PLAIN = PlainAveraging()
_OPTIMIZER = "optimizer."
_KNOWN = "known."
_BUFFER = "buffer."
_SCALE = "numerics.scale"
SPENT = ".privacy.json"  # beside the checkpoint, which ends in something else


class Learner:
    """Model, data, optimiser, mixer. Raises ConfigError if the manifest or the node's settings cannot be used on this machine."""

    def __init__(self, opening: Open, csprng: Csprng) -> None:
        manifest, self._stage = opening.manifest, opening.stage
        if opening.stage >= 0:  # a gradient is shortened by what all stages have of it
            manifest = structs.replace(manifest, optimizer=manifest.optimizer.changed(clip_norm=None))
        self._manifest = manifest
        self._node = opening.node
        kind = manifest.task.kind
        consent.find(manifest, opening.code)
        island.check(opening)
        computing = device(opening.device)
        sharded = opening.parallel != "data"  # the whole model is in the host's memory then, and on no device
        self.device = "cpu" if sharded else computing
        there = torch.cuda.mem_get_info()[1] if self.device == "cuda" else memory.there()
        on_devices = sharded and computing == "cuda"
        if opening.stage < 0:
            memory.check(manifest, there, trains=not on_devices)
        self.task = calling(kind, "making the task", lambda: task(kind, manifest.task.params()))
        path = Path(opening.data) if opening.data else None
        source = Source(path, manifest.partition, opening.shard, manifest.seed)
        self.data: Data = (
            calling(kind, "data()", lambda: data_of(self.task, source, self.device, manifest.mix.own))
            if opening.stage <= 0
            else stages.Elsewhere()
        )
        self._start = opening.start
        self.cut = stages.cut(self.task, manifest, opening.stage, there) if opening.stage >= 0 else None
        self._model = self._fresh()
        if self.cut is None:
            size = sum(each.nbytes for each in self._model.parameters())
            memory.check(manifest, there, size, trains=not on_devices)
            if on_devices:
                memory.check_part(
                    manifest, torch.cuda.mem_get_info()[1], opening.ranks, opening.numerics.micro_batch, size
                )
        if ":" in kind and self.cut is None:
            rehearse(kind, self.task, self._model, self.data, manifest.task.batch_size)
        try:
            self.layout = layout(self._model)
        except ValueError as error:
            raise ConfigError(f"task.kind: {kind!r}: {error}") from error
        self._gradients = Gradients(opening.numerics, self.task, self._model, computing)
        if opening.privacy.noise and opening.numerics != NumericsSection():
            raise ConfigError(
                "numerics: with privacy.noise gradients are of single samples, in float32 and in chunks that fit; leave its keys out"
            )
        every = opening.numerics.noise_every
        self._noise = None if every is None else NoiseScale(every)
        if opening.numerics.micro_batch is not None or every is not None:
            self._gradients.check(self.data.batch(manifest.task.batch_size, generator(0, "rehearsal")))
        release_gradients(self._model)  # of a batch that was tried
        self.x = bind_parameters(self._model, self.layout)
        self._gradient: Tensor | None = None  # (d,); None while there are no local steps
        self.island: Island | None = None
        if opening.ranks > 1:
            batch = self.data.batch(manifest.task.batch_size, generator(0, "rehearsal"))
            whole = Whole(self.task, self._fresh, self.layout, self.x) if sharded else None
            self.island = Island(opening, computing, self._model, batch, whole)
            if self.island.x is not None:
                self.x = self.island.x
                rebind(self._model, self.layout, self.x)
        self.private = None
        if opening.privacy.noise:
            ledger = Path(opening.checkpoint).with_suffix(SPENT) if opening.checkpoint else None
            self.private = PrivateGradients(
                opening.privacy, manifest, self.task, self._model, self.layout, self.data, csprng=csprng, path=ledger
            )
        self.mixer, self.shared_layout = mixer_of(manifest, self.layout)
        if isinstance(self.mixer, Seeds):
            self._check_seeds(opening)
        if manifest.mix.own and self.private is not None:
            raise ConfigError(
                "mix.own: the share of an exchange that a node takes tells of samples, without noise; must be 0 with privacy.noise"
            )
        compares = not pulls(self.mixer.edge) and selector_facts(manifest.compress, self.mixer.edge).compares
        self._origin = origin(self.mixer, self.x) if swaps(self.mixer.edge) or compares else None
        self.state: Any = None
        self.ledger: Ledger
        self.kept: dict[str, Tensor] = {}
        self._slots: dict[str, int] = {}  # of peers that a rule remembers
        self._begin()
        self._moments = opening.numerics.moments
        self._optimizer = self._new_optimizer()
        if opening.privacy.noise and (manifest.optimizer.sam or manifest.optimizer.gradient != "plain"):
            raise ConfigError(
                "privacy.noise: a second gradient, or an earlier one, in a step is not in its account; must be 0 with optimizer.sam and "
                "optimizer.gradient, or leave these out"
            )
        self._raw: Tensor | None = None  # (d,) the last gradient, where steps are optimistic
        self._weight = weight(manifest, self.data.samples)
        self._schedule = schedule(manifest.optimizer, manifest.pace.rounds)
        self._joined_at: int | None = None
        # of the driver; around a step's first gradient, which is taken at the model
        self.around_gradient: Callable[[], AbstractContextManager[None]] = nullcontext
        self.spare: Callable[[], Tensor | None] = lambda: None  # (d,) the model of the last checkpoint, if there is one
        self._good = None if self.large else self.x.clone()
        self._buffers = dict(self._model.named_buffers())
        self._good_buffers = _copied(self._buffers)
        self.local_steps = 0
        self.undone = 0

    def _fresh(self) -> nn.Module:
        """The model, or the stage's blocks, as all began with."""
        if self.cut is not None:
            return stages.blocks_of(self.task, self._manifest, self.cut).to(self.device)
        return initial(self.task, self._manifest, self._start).to(self.device)

    def gradient(self) -> Tensor:
        """(d,) to which those of the parameters are bound."""
        if self.island is not None and self.island.gradient is not None:
            return self.island.gradient
        if self._gradient is None:
            self._gradient = bind_gradients(self._model, self.layout)
        return self._gradient

    def staged(self, file: Path | None) -> stages.Stage | None:
        """What a crew's calls do with this model; None: it is whole. States are kept beside `file`."""
        if self.cut is None:
            return None
        return stages.Stage(
            self.task, self._manifest, self._stage, self._model, self.data, self.device, self.gradient, file
        )

    def local_step(self, round: int) -> float | None:
        """One step at the rate of `round` -> its loss, nan if it looked at no data, or None if it was undone.

        Either way the batch counts as used.
        """
        chance = generator(self._manifest.seed, "batch", self._node, self.local_steps)
        self.local_steps += 1
        if isinstance(self.mixer, Seeds):
            return self._step_by_seeds(self.mixer, round, chance)
        gradient = self.gradient()
        self._model.train()
        if self.private is None:
            with self.around_gradient():
                value, fine = self._learn(chance, gradient)
            gradient = self._made(value, gradient, round)
        else:
            value, fine = self._learn_privately(self.private, gradient)
        return self._step(round, value, fine, gradient)

    def crew_step(self, round: int, loss: float, scale: float, fine: bool) -> float | None:
        """The same of a gradient that the stages of a crew made together, times `scale`."""
        self.local_steps += 1
        if scale != 1.0:
            self.gradient().mul_(scale)
        return self._step(round, loss, fine, self.gradient())

    def _step(self, round: int, value: float, fine: bool, gradient: Tensor) -> float | None:
        state, owned = self.state, self._in_place()

        def correct(gradient: Tensor) -> Tensor:
            nonlocal state
            if owned is None:
                direction, state = self.mixer.correct(state, gradient)
            elif finite(gradient):
                direction, state = owned(state, gradient, self.local_steps)
            else:  # refused below, with the state as it was
                direction = gradient
            return direction

        offset = self._optimizer.offset(self.mixer, state)
        direction, shift = self._optimizer.corrected(
            gradient, correct if offset is None else lambda same: same, self._weight
        )
        if not fine or not finite(direction):
            self.undone += 1
            self._reset_buffers()
            return None
        rate = self._schedule.at(round) * self._ramp(round)
        chance = generator(self._manifest.seed, "moments", self._node, self.local_steps)
        self._optimizer.step(self.x, direction, rate, shift, self._weight, chance)
        if offset is not None:
            self.x.add_(offset, alpha=rate)
        if not finite(self.x):
            self.undone += 1
            self.x.copy_(self._last_good())
            self._reset_buffers()
            self._optimizer = self._new_optimizer()  # its memory is what blew up
            if owned is not None:
                self.state = state
            return None
        self.state = state
        return value

    def _in_place(self) -> Callable[[Any, Tensor, int], tuple[Tensor, Any]] | None:
        """How a large model's gradient is corrected without a second vector, and its state changed likewise; None: as any other."""
        mixer = self.mixer
        return mixer.correct_owned if isinstance(mixer, Pet) and mixer.in_place and self.large else None

    def _check_seeds(self, opening: Open) -> None:
        """Raises ConfigError where a setting would be ignored, or steps would take too long."""
        if opening.privacy.noise or opening.numerics != NumericsSection() or opening.ranks > 1:
            raise ConfigError(
                "mix.kind: seeds computes losses and no gradient, for which privacy.noise, numerics and ranks do nothing; leave them out"
            )
        members = opening.manifest.pace.quorum
        if members * self.layout.dim > MOST_NUMBERS:
            raise ConfigError(
                f"mix.kind: with seeds {members} nodes draw {members * self.layout.dim:,} signs a step, which must be <= {MOST_NUMBERS:,}; "
                "try adapters (starling.adapters.lora), which train fewer parameters"
            )

    def _step_by_seeds(self, seeds: Seeds, round: int, chance: Generator) -> float | None:
        """One step without a gradient -> the mean of both losses, or None if they are no numbers, and it was not taken."""
        direction = seeds.direction(self._node, round, int(self.state.done), self.x)
        both = torch.stack((self.x + seeds.epsilon * direction, self.x - seeds.epsilon * direction))
        losses = self._losses_on(self.data.batch(self._manifest.task.batch_size, chance), both)
        scalar = self._schedule.at(round) * self._ramp(round) * slope(losses, seeds.epsilon)
        if not (fine := bool(torch.isfinite(scalar))):
            self.undone += 1
            scalar = torch.zeros_like(scalar)
        _, self.state = seeds.correct(self.state, scalar)
        self.x.sub_(scalar * direction)
        return float(losses.mean()) if fine else None

    def _learn(self, chance: Generator, gradient: Tensor) -> tuple[float, bool]:
        """A batch's gradient -> its loss, and whether that is a number."""
        batch = self.data.batch(self._manifest.task.batch_size, chance)
        seed = derive(self._manifest.seed, "layers", self._node, self.local_steps)

        def compute(batch: Any, seed: int) -> float:
            if self.island is not None:
                step = self.local_steps - 1
                return self.island.compute(step, self.x, self._gradients, batch, gradient, seed, self._reset_buffers)
            return self._gradients.compute(batch, gradient, seed, self._reset_buffers)

        if self._noise is not None and self._noise.due(self.local_steps, batch):
            value = self._noise.measure(compute, batch, gradient, seed)
        else:
            value = compute(batch, seed)
        return value, math.isfinite(value)

    def _made(self, value: float, gradient: Tensor, round: int) -> Tensor:
        """What this step goes along before corrections, of its first gradient (d,)."""
        section = self._manifest.optimizer
        if section.gradient == "optimistic" and math.isfinite(value):
            before, self._raw = self._raw, gradient.clone()
            return ahead.optimistic(gradient, before)
        if ahead.looks_ahead(section) and math.isfinite(value):
            x, rate = self.x.clone(), self._schedule.at(round) * self._ramp(round)
            self.x.copy_(ahead.point(section, x, gradient, lambda g: self.mixer.correct(self.state, g)[0], rate))
            self._learn(generator(self._manifest.seed, "batch", self._node, self.local_steps - 1), gradient)
            self.x.copy_(x)
        return gradient

    @property
    def noise_scale(self) -> float | None:
        """In samples; None where it is not measured, or not known yet."""
        return None if self._noise is None else self._noise.figure

    def take_notes(self) -> tuple[str, ...]:
        """What was changed by itself in local steps since the last call, and why."""
        return taken_notes(self._gradients, self.data)

    def _learn_privately(self, private: PrivateGradients, gradient: Tensor) -> tuple[float, bool]:
        """A noised gradient -> the mean loss of its samples. Whether the step is taken must not depend on the data."""
        noised, value = private.gradient()
        gradient.copy_(noised)
        return value, True

    @property
    def epsilon(self) -> float | None:
        """ε used so far; None without differential privacy."""
        return None if self.private is None else self.private.accountant.epsilon()

    @property
    def halted(self) -> str:
        """Why training on the data has stopped (the ε allowed is used up); "" while it goes on."""
        return "" if self.private is None else self.private.accountant.problem

    def mark_good(self) -> None:
        """Keep the model as the one to restore when a step leaves the finite numbers."""
        if self._good is not None:
            self._good.copy_(self.x)
        self._good_buffers = _copied(self._buffers)

    def _new_optimizer(self) -> Optimizer:
        """Without memory."""
        return optimizer_of(self._manifest, self.x, self._model, self._moments)

    def _last_good(self) -> Tensor:
        """Of a large model no copy is kept: that of the last checkpoint, else the one that training began with."""
        if self._good is not None:
            return self._good
        spare = self.spare()
        return self.beginning() if spare is None else spare

    def rest(self) -> None:
        """Free what only local steps need."""
        self._gradient = None
        release_gradients(self._model)
        self.trim()

    def trim(self) -> None:
        """Give freed memory back, where the model is so large that it matters."""
        if self.large:
            heap.trim()

    @property
    def large(self) -> bool:
        """Whether the model is so large that its copies matter."""
        return self.layout.dim > LARGE

    @property
    def form(self) -> Tensor:
        """(D,) of the shared vector's length, dtype and device; its numbers mean nothing."""
        return self.ledger.total

    @property
    def origin(self) -> Tensor:
        """(D,) the shared vector that all nodes began with; kept only where exchanges compare with it."""
        return origin(self.mixer, self.beginning()) if self._origin is None else self._origin

    def _reset_buffers(self) -> None:
        """Undo the changes of a forward pass."""
        for name, buffer in self._good_buffers.items():
            self._buffers[name].copy_(buffer)

    def _ramp(self, round: int) -> float:
        if self._joined_at is None:
            return 1.0
        return ramp(max(0, round - self._joined_at), self._manifest.pace.ramp_rounds)

    def phase(self, round: int, local_steps: float, *, shared: bool = False) -> Phase:
        """The phase of `round`, with its learning rate; where `shared`, equal at all nodes: without a late joiner's ramp."""
        return phase(self._manifest.optimizer, self._schedule, round, local_steps, 1.0 if shared else self._ramp(round))

    def publish(self, phase: Phase) -> None:
        """Let the mixer act after local steps."""
        x, self.state = self.mixer.publish(self.state, self.x if replaces(self.mixer) else self.x.clone(), phase)
        if x is not self.x:
            self.x.copy_(x)

    def shared(self) -> Tensor:
        """(D,) the vector that is exchanged; changes with the model where it is the model."""
        return self.mixer.shared(self.state, self.x)

    def absorb(self, done: Sequence[Effect | Swapped | EncodedEffect], phase: Phase) -> None:
        """Add committed effects in the given order; in steps pace once a round, also if there are none."""
        shared = self.shared()
        swapped = [swap for swap in done if isinstance(swap, Swapped)]
        if swapped:
            assert swaps(self.mixer.edge)
            shared, self.kept = edge_ledger.swap(self.mixer.edge, self.kept, shared, self.origin, swapped)
            if controls(self.mixer.edge):
                self.state = self.mixer.corrected(self.state, self._flows())
        effects = [effect for effect in done if not isinstance(effect, Swapped)]
        if isinstance(self.data, Reserved):
            effects = [self._own_share(effect, shared, self.data.aside) for effect in effects]
        if effects:
            shared = self._book(effects, shared)
        self._absorb(shared, phase)

    def take_over(self, others: Sequence[str], received: Tensor, phase: Phase) -> Tensor | None:
        """Combine vectors of peers (1 + k, D), all there, the first in the place of our own, which a node that slept does not know better.

        -> of the `others` than the first, (k,) bool: excluded; None: unknown. What the optimiser remembers is of another model.
        """
        self._optimizer = self._new_optimizer()
        first, rest = received[0], received[1:]
        return self.gather(others, rest, torch.ones(len(rest), dtype=torch.bool, device=rest.device), phase, first)

    def gather(
        self, asked: Sequence[str], received: Tensor, present: Tensor, phase: Phase, own: Tensor | None = None
    ) -> Tensor | None:
        """Combine our vector with those of peers, as `PullExchange.received` gives them -> (k,) bool: excluded; None: unknown.

        `own` (D,): instead of our vector.
        """
        assert isinstance(self.mixer, Gather)
        shared, held = self.shared() if own is None else own, None
        if len(present):
            taken, before, slots = self._assigned(self.mixer.rule.memory_slots, asked, present)
            combined, state, held = self.mixer.combine(before, shared, received, present, self._losses(), slots)
            if finite(combined):  # else our own vector stays
                shared, self.state, self._slots = combined, state, taken
        self._absorb(shared, phase)
        return held

    def _absorb(self, shared: Tensor, phase: Phase) -> None:
        """The shared vector (D,) is this now; it may be the model itself."""
        x = self.x if shared is self.x and replaces(self.mixer) else self.x.clone()
        x, self.state = self.mixer.absorb(self.state, x, shared, phase)
        if x is not self.x:
            self.x.copy_(x)

    @property
    def anchor(self) -> Tensor | None:
        """(d,) where nodes broadcast: the model between rounds, equal at all of them."""
        return self.mixer.edge.settled(self.state) if broadcasts(self.mixer.edge) else None

    @property
    def settled(self) -> Tensor:
        """(d,) the model that others may take over and a checkpoint keeps: the anchor, where there is one."""
        anchor = self.anchor
        return self.x if anchor is None else anchor

    def advance(
        self, shared: Tensor, sent: Tensor, messages: Tensor, present: Tensor, members: Sequence[str], phase: Phase
    ) -> Tensor:  # fmt: skip
        """The outer step of a round, `shared` (d,) as it was frozen and the messages as `PullExchange.messages` gives them.

        -> (n,) bool: shortened.
        """
        assert broadcasts(self.mixer.edge)
        state, shortened = self.mixer.edge.advance(self.state, shared, sent, messages, present, members, phase.round)
        x, self.state = self.mixer.absorb(state, self.x.clone(), shared, phase)
        self.x.copy_(x)
        return shortened

    def _assigned(
        self, count: int, asked: Sequence[str], present: Tensor
    ) -> tuple[dict[str, int], Gathered, Tensor | None]:
        """Slots of peers in the rule's memory, the state with empty slots for new peers, and the slots of `asked`."""
        if not count:
            return self._slots, self.state, None
        taken, kept, slots = assign_slots(self._slots, asked, present.tolist(), self.state.kept, count)
        return taken, replace(self.state, kept=kept), slots

    def _losses(self) -> Losses | None:
        """Losses of models on the batch of the last local step. None with differential privacy: losses would reveal the data."""
        if self.private is not None:
            return None

        def losses(models: Tensor) -> Tensor:
            chance = generator(self._manifest.seed, "batch", self._node, max(0, self.local_steps - 1))
            return self._losses_on(self.data.batch(self._manifest.task.batch_size, chance), models)

        return losses

    def _losses_on(self, batch: Any, models: Tensor) -> Tensor:
        """Of models (…, d) -> (…), infinite where it is no number."""
        ours, values = self.x.clone(), []
        with comparing(self._model), torch.no_grad():
            for model in models.reshape(-1, models.shape[-1]):
                self.x.copy_(model)
                values.append(self.task.loss(self._model, batch).to(ours.dtype))
        self.x.copy_(ours)
        return torch.stack(values).nan_to_num(math.inf, math.inf).reshape(models.shape[:-1])

    def _own_share(self, effect: Effect | EncodedEffect, shared: Tensor, aside: Any) -> Effect | EncodedEffect:
        """The effect with the share of its step that is best by the samples set aside, of `shared` (D,) before any of its round."""
        value, models = decoded(effect).value, []
        for share in SHARES:
            moved = effect.support.add(shared, share * effect.theta * value)
            models.append(self.mixer.put(self.x, moved) if isinstance(self.mixer, Personal) else moved)
        return replace(effect, theta=effect.theta * float(chosen(self._losses_on(aside, torch.stack(models)))))

    def flow_only(self, done: Effect | Swapped | EncodedEffect) -> Effect | EncodedEffect:
        """Update the state of an effect's edge ahead of its round -> the effect that remains for the vector."""
        shared = torch.zeros_like(self.form)
        if not isinstance(done, Swapped):
            self._book([done], shared)
            return replace(done, gain=0.0, drift=None)
        assert swaps(self.mixer.edge)
        change, self.kept = edge_ledger.swap(self.mixer.edge, self.kept, shared, self.origin, [done])
        return Effect(done.peer, Full(), change, 1.0, 0.0)

    def _book(self, effects: Sequence[Effect | EncodedEffect], shared: Tensor) -> Tensor:
        """Add effects to the flows and to `shared` (D,), which is changed only where it is ours alone, or the model that is mixed."""
        edge = self.mixer.edge
        rule = PLAIN if swaps(edge) or pulls(edge) else edge
        if shared is not self.x or not replaces(self.mixer):
            shared = shared.clone()
        moved = any(map(edge_ledger.moves, effects))
        shared, self.ledger = edge_ledger.average(rule, self.ledger, shared, map(decoded, effects), owned=True)
        if moved:
            self.state = self.mixer.corrected(self.state, self.ledger.total)
        return shared

    def settle(self, peer: str) -> None:
        """The edge was closed in order."""
        self.kept.pop(peer, None)
        self._correct(edge_ledger.settle(self.ledger, peer, settled_edges(self._manifest)))

    def revoke(self, peer: str) -> bool:
        """The peer is gone, from the rule's memory as well. -> whether the remaining flows compensated for the revoked one"""
        self.kept.pop(peer, None)
        if peer in self._slots:
            assert isinstance(self.mixer, Gather)
            kept = cleared(self.state.kept, self.mixer.rule.memory_slots, [self._slots.pop(peer)])
            self.state = replace(self.state, kept=kept)
        before = self.ledger
        self._correct(edge_ledger.revoke(before, peer))
        return edge_ledger.dominated(before, self.ledger)

    def _correct(self, changed: Ledger) -> None:
        self.ledger = changed
        self.state = self.mixer.corrected(self.state, self._flows())

    def _flows(self) -> Tensor:
        """(D,) the sum of those of all edges."""
        edge = self.mixer.edge
        if controls(edge) and self.kept:
            return edge.flows(torch.stack([self.kept[peer] for peer in sorted(self.kept)]))
        return self.ledger.total

    def _begin(self) -> None:
        """Start the mixer anew, without edges."""
        self.state = self.mixer.start(self.x if replaces(self.mixer) else self.x.clone())
        shared = self.mixer.shared(self.state, self.x)
        self.ledger = edge_ledger.opened(shared)
        self.state = self.mixer.corrected(self.state, self.ledger.total)  # the same zeros, once
        self.kept, self._slots = {}, {}

    def evaluation(self) -> tuple[MeasuredModel, Iterator[Result | None]]:
        """The model as it is now, and slices of its evaluation; training may go on meanwhile."""
        model, measured = self._model, MeasuredModel(self._model)
        return measured, measured.slices(
            chain(self._statistics(model), evaluate(self.task, model, self.data, EVALUATION_BATCH, own=self.own))
        )

    def _statistics(self, model: nn.Module) -> Iterator[None]:
        """Estimate a model's normalisation statistics from this node's training data, a batch at a time."""
        size, seed = self._manifest.task.batch_size, self._manifest.seed
        batches = (self.data.batch(size, generator(seed, "statistics", self._node, turn)) for turn in range(BATCHES))
        return estimate(self.task, model, batches)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        memory = {_OPTIMIZER + name: tensor for name, tensor in self._optimizer.state_dict().items()}
        known = {}
        if self._slots:
            assert isinstance(self.mixer, Gather)
            known = {
                _KNOWN + peer: slot_of(self.state.kept, self.mixer.rule.memory_slots, slot).clone()
                for peer, slot in self._slots.items()
            }
        buffers = {_BUFFER + name: buffer for name, buffer in self._buffers.items()}
        scale = {} if self._gradients.scale is None else {_SCALE: self._gradients.scale.state()}
        return {_X: self.settled, **memory, **known, **buffers, **scale}

    def restore(self, tensors: Mapping[str, Tensor], local_steps: int) -> None:
        """Resume from a checkpoint; of the mixer only its rule's memory is kept. If a ValueError is raised nothing has changed."""
        self.check(tensors.get(_X))
        buffers, memory, known = (_named(tensors, prefix) for prefix in (_BUFFER, _OPTIMIZER, _KNOWN))
        given, ours = ({name: (b.shape, b.dtype) for name, b in each.items()} for each in (buffers, self._buffers))
        if given != ours:
            raise ValueError("holds other buffers than the model has")
        if self._gradients.scale is not None and _SCALE in tensors:
            self._gradients.scale.load(tensors[_SCALE])
        tensor_file.release(tensors)
        self._optimizer.load(memory, lambda: tensor_file.release(tensors))
        for name, buffer in buffers.items():
            self._buffers[name].copy_(buffer)
        self._replace(tensors[_X])
        self.local_steps = local_steps
        self._recall(known)
        tensor_file.release(tensors)

    def rewind(self, tensors: Mapping[str, Tensor], local_steps: int) -> None:
        """Go back to an earlier state of this model. Flows stay: they are the edges', and equal at both ends.

        Raises ValueError: it is another model's; nothing has changed.
        """
        self.check(tensors.get(_X))
        memory = _named(tensors, _OPTIMIZER)
        self._optimizer = self._new_optimizer()
        self._optimizer.load(memory)
        self.x.copy_(tensors[_X])
        self.local_steps = local_steps
        self.mark_good()

    def _recall(self, known: Mapping[str, Tensor]) -> None:
        """Give the peers of a checkpoint their slots in the rule's memory."""
        if not known or not isinstance(self.mixer, Gather) or not (slots := self.mixer.rule.memory_slots):
            return
        kept = self.state.kept.clone()
        for slot, (peer, history) in enumerate(sorted(known.items())[:slots]):
            place = slot_of(kept, slots, slot)
            if history.shape == place.shape:
                self._slots[peer] = slot
                place.copy_(history)
        self.state = replace(self.state, kept=kept)

    @property
    def own(self) -> bool:
        """Whether this node's model is its own, to be measured by samples like its own."""
        return isinstance(self.mixer, Personal) or isinstance(self.data, Reserved)

    @property
    def offered(self) -> Tensor:
        """What others may take over of the model: all of it, or (s,) what nodes share."""
        return self.mixer.part(self.settled) if isinstance(self.mixer, Personal) else self.settled

    @property
    def offered_at_first(self) -> Tensor:
        """As `offered`, of the model that all began with."""
        begun = self.beginning()
        return self.mixer.part(begun) if isinstance(self.mixer, Personal) else begun

    def whole(self, offered: Tensor) -> Tensor:
        """(d,) a model that was `offered`, with what is at home here. Raises ValueError as `check`."""
        if not isinstance(self.mixer, Personal):
            return offered
        if offered.shape != (self.shared_layout.dim,):
            raise ValueError("holds another model")
        return self.mixer.put(self.x, offered.to(self.x))

    def install(self, offered: Tensor, round: int) -> None:
        """Take over another node's model in `round`: empty memory, no flows, and a rate that climbs from there."""
        x = self.whole(offered)
        self.check(x)
        self._optimizer = self._new_optimizer()
        self._joined_at, self._raw = round, None
        self._replace(x)

    def beginning(self) -> Tensor:
        """(d,) the initial model, equal at every node."""
        return bind_parameters(self._fresh(), self.layout)

    def state_dict(self) -> dict[str, Tensor]:
        """The model as `load_state_dict` takes it, with normalisation statistics estimated anew; only what is frozen is not a copy."""
        measured = MeasuredModel(self._model)
        for _ in measured.slices(self._statistics(self._model)):
            pass
        return measured.entries()

    def facts(self) -> Mapping[str, str | int]:
        """Return what a file of the model says of it."""
        return facts(self._model)

    def _replace(self, x: Tensor) -> None:
        self.x.copy_(x)
        self.mark_good()
        self._begin()

    def check(self, x: Tensor | None) -> None:
        """Raises ValueError unless it is a finite model of our shape and dtype."""
        if x is None or x.shape != self.x.shape or x.dtype != self.x.dtype:
            raise ValueError("holds another model")
        if not finite(x):
            raise ValueError("holds numbers that are not finite")


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with the prefix, named without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _copied(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in named.items()}
