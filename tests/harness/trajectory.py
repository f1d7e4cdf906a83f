"""The reference trajectory of a virtual swarm: the same task, data, optimiser and links, without daemons, frames or time."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from starling.gossip.api import Losses
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.select.coordinates import Everything
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.overlay.links import directions
from starling.gossip.overlay.ranks import ranked
from starling.gossip.overlay.stages import stage, turn
from starling.gossip.rng import generator
from starling.gossip.vector import bind, layout
from starling.node.catalogues import task
from starling.node.config.overlay import overlay_of
from starling.node.config.schema import Manifest
from starling.node.engine.initial_model import initial
from starling.node.engine.mixing import mixer
from starling.node.engine.optimizers import corrections_of, optimizer_of
from starling.node.engine.schedules import phase, schedule
from starling.node.tasks.api import Source
from starling.robust.clip import clip
from tests.harness.reference import Local, Reference


def walk(
    agreed: Manifest,
    swarm: str,
    peers: Sequence[str],
    incarnation: Callable[[str, str], int] = lambda _one, _other: 0,
    asked: Callable[[str, int], Collection[str]] | None = None,
    salt: Callable[[int], bytes] | None = None,
    file: str = "",
) -> Tensor:
    """Return (n, d) models after all rounds with whole vectors and no faults.

    Args:
        agreed: steps pace, compress.select = "full".
        swarm: swarm id, which salts the ranks.
        peers: peer id by shard.
        incarnation: (peer, peer) -> their edge's.
        asked: (peer, round) -> the peers it pulled, where the overlay does not decide.
        salt: of a round's ranks, if it is not the swarm id.
        file: the file whose digest is `task.start`.
    """
    start, local, worth = _nodes(agreed, peers, file)
    rates = schedule(agreed.optimizer, agreed.pace.rounds)
    reference = Reference(
        peers=peers,
        x=start,
        mixer=mixer(agreed),
        codec=ExchangeCodec(
            quantizer(agreed.compress.request, start.dtype), quantizer(agreed.compress.response, start.dtype), agreed.mix.clip_norm, clip
        ),
        selector=Everything(),
        seed=agreed.seed,
        incarnation=incarnation,
        losses=worth,
    )
    graph = overlay_of(agreed)
    for number in range(agreed.pace.rounds):
        order = ranked(peers, swarm.encode() if salt is None else salt(number))
        if asked is None:
            met = [
                (i, peers.index(peer), take, give)
                for i, me in enumerate(peers)
                for peer, (give, take) in directions(graph, order, me, number).items()
            ]
        else:
            theirs = [asked(me, number) for me in peers]
            pairs = [(i, j) for i in range(len(peers)) for j in range(i)]
            met = [(j, i, float(peers[i] in theirs[j]), float(peers[j] in theirs[i])) for i, j in pairs]
        now = stage(graph, len(peers), number)
        steps = agreed.pace.local_steps if now.local else 0
        where = replace(phase(agreed.optimizer, rates, number, steps), first=now.first, last=now.last, turn=turn(graph, len(peers), number))
        reference.round(where, local if now.local else None, [link for link in met if link[0] < link[1]])
    return reference.x


def _nodes(agreed: Manifest, peers: Sequence[str], file: str = "") -> tuple[Tensor, Local, Callable[[int], Losses]]:
    """Return the initial models (n, d), local steps, and losses of models, made of an engine's parts."""
    made = task(agreed.task.kind, agreed.task.params())
    rates = schedule(agreed.optimizer, agreed.pace.rounds)
    corrections, nodes = corrections_of(agreed), []
    for shard in range(len(peers)):
        model = initial(made, agreed, file)
        x, gradient = bind(model, layout(model))
        data = made.data(Source(None, agreed.partition, shard, agreed.seed), "cpu")
        nodes.append((model, x, gradient, data, optimizer_of(agreed, x, model)))

    done = [0] * len(peers)

    def local(node: int, round: int, x: Tensor, correct: Callable[[Tensor], Tensor]) -> Tensor:
        model, live, gradient, data, descent = nodes[node]
        live.copy_(x)
        for _ in range(agreed.pace.local_steps):
            chance = generator(agreed.seed, "batch", peers[node], done[node])
            done[node] += 1
            gradient.zero_()
            made.loss(model, data.batch(agreed.task.batch_size, chance)).backward()
            direction, shift = corrections.corrected(gradient, correct)
            descent.step(live, direction, rates.at(round), shift)
        return live.clone()

    def worth(node: int) -> Losses:
        model, live, _, data, _ = nodes[node]
        batch = data.batch(agreed.task.batch_size, generator(agreed.seed, "batch", peers[node], done[node] - 1))

        def losses(models: Tensor) -> Tensor:
            values = torch.empty(models.shape[:-1])
            for at in range(len(models)):
                live.copy_(models[at])
                values[at] = made.loss(model, batch).detach()
            return values

        return losses

    return torch.stack([x.clone() for _, x, *_ in nodes]), local, worth
