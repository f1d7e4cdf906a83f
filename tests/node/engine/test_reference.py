"""The reference trajectory: engines called by hand must follow it bit for bit, and it must converge as theory says."""

import msgspec
import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import SELECTIONS, quantizer
from starling.gossip.compress.select.coordinates import Everything, Mask, TopK
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.moments import Moments, averages_memories
from starling.gossip.mix.pet import Pet
from starling.gossip.rng import generator
from starling.gossip.vector import bind, layout
from starling.node.catalogues import task
from starling.node.config import manifest as manifests
from starling.node.config.schema import CompressSection, MixSection, OptimizerSection
from starling.node.engine import schedules
from starling.node.engine.mixing import mixer
from starling.node.engine.optimizers import corrections_of, optimizer_of
from starling.node.engine.schedules import schedule
from starling.node.simulate.measure import consensus_distance
from starling.node.tasks.api import Source
from starling.robust.clip import clip
from tests.harness.engines import manifest, opened, play, x_of
from tests.harness.reference import Reference, descent

PEERS = ("d", "a", "c", "b")  # not sorted, since ranks differ from the order of peer ids


def ring(round):
    """Return two links per node."""
    return [(k, (k + 1) % 4, 1.0 / 3.0, 1.0 / 3.0) for k in range(4)]


def matching(round):
    """Return one partner per round."""
    return [(i, j, 0.5, 0.5) for i, j in (((0, 1), (2, 3)), ((1, 2), (3, 0)), ((0, 2), (1, 3)))[round % 3]]


def phase(agreed, round):
    """Return the phase of a round."""
    rates = schedule(agreed.optimizer, agreed.pace.rounds)
    return schedules.phase(agreed.optimizer, rates, round, agreed.pace.local_steps)


def reference(agreed, selector):
    """Return the swarm that `agreed` describes and its local steps, made of the engine's parts."""
    made = task(agreed.task.kind, agreed.task.params())
    rates = schedule(agreed.optimizer, agreed.pace.rounds)
    corrections, nodes = corrections_of(agreed), []
    for shard in range(len(PEERS)):
        model = made.model(generator(agreed.seed, "model"))
        x, gradient = bind(model, layout(model))
        data = made.data(Source(None, agreed.partition, shard, agreed.seed), "cpu")
        nodes.append((model, x, gradient, data, optimizer_of(agreed, x, model)))

    def local(node, round, x, correct):
        model, live, gradient, data, optimiser = nodes[node]
        live.copy_(x)
        for step in range(agreed.pace.local_steps):
            chance = generator(agreed.seed, "batch", PEERS[node], round * agreed.pace.local_steps + step)
            gradient.zero_()
            made.loss(model, data.batch(agreed.task.batch_size, chance)).backward()
            direction, shift = corrections.corrected(gradient, correct)
            optimiser.step(live, direction, rates.at(round), shift)
        return live.clone()

    dtype = nodes[0][1].dtype
    swarm = Reference(
        peers=PEERS,
        x=torch.stack([node[1].clone() for node in nodes]),
        mixer=mixer(agreed),
        codec=ExchangeCodec(
            quantizer(agreed.compress.request, dtype), quantizer(agreed.compress.response, dtype), agreed.mix.clip_norm, clip
        ),
        selector=selector,
        seed=agreed.seed,
        compares=SELECTIONS.facts(agreed.compress.select).compares,
    )
    return swarm, local


@pytest.mark.slow
@pytest.mark.parametrize("links", [ring, matching])
@pytest.mark.parametrize(
    ("mix", "select", "selector"),
    [
        ("pet", "full", Everything()),
        ("pet", "mask", Mask(0.1)),
        ("pet", "top_k", TopK(0.1)),
        ("dsgd", "full", Everything()),
        ("gradient_tracking", "mask", Mask(0.1)),
        (MixSection(clip_norm=0.5, kappa=0.1, leak=0.2), "mask", Mask(0.1)),
        (MixSection(clip_norm=0.5, flows="bfloat16"), "full", Everything()),
    ],
)
def test_engines_follow_the_reference_trajectory_bit_for_bit(mix, select, selector, links):
    """On a neural network, with momentum, 4-bit differences and clipping: the engine changes not a single bit."""
    agreed = manifest(
        mix=MixSection(kind=mix, clip_norm=0.5) if isinstance(mix, str) else mix,
        compress=CompressSection(select=select),
        rounds=6,
        local_steps=4,
    )
    engines = {peer: opened(agreed, shard, peer) for shard, peer in enumerate(PEERS)}
    play(engines, agreed, lambda turn: [(PEERS[i], PEERS[j], theta) for i, j, theta, _ in links(turn)])
    swarm, local = reference(agreed, selector)
    start = swarm.x.clone()
    for turn in range(agreed.pace.rounds):
        swarm.round(phase(agreed, turn), local, links(turn))
    assert not torch.equal(swarm.x, start)
    for node, peer in enumerate(PEERS):
        assert torch.equal(swarm.x[node], x_of(engines[peer])), peer


def assert_same_bits_and_other_than(agreed, without):
    """Assert that engines and loop agree bit for bit under `agreed`, and differ from the loop under `without`."""
    engines = {peer: opened(agreed, shard, peer) for shard, peer in enumerate(PEERS)}
    play(engines, agreed, lambda turn: [(PEERS[i], PEERS[j], theta) for i, j, theta, _ in matching(turn)])
    swarm, local = reference(agreed, Everything())
    other, local_other = reference(without, Everything())
    for turn in range(agreed.pace.rounds):
        swarm.round(phase(agreed, turn), local, matching(turn))
        other.round(phase(agreed, turn), local_other, matching(turn))
    assert not torch.equal(swarm.x, other.x)
    for node, peer in enumerate(PEERS):
        assert torch.equal(swarm.x[node], x_of(engines[peer])), peer


def test_corrected_updates_agree_bit_for_bit_in_engines_and_loop():
    """With any optimiser but sgd; and the corrections change the result."""
    agreed = manifest(mix="k_gt", optimizer=OptimizerSection(kind="adamw", lr=0.002), rounds=3, local_steps=3)
    assert_same_bits_and_other_than(agreed, msgspec.structs.replace(agreed, mix=MixSection(kind="dsgd")))


@pytest.mark.parametrize(
    ("optimizer", "mix", "chosen"),
    [("sgd", "pet", Pet), ("adamw", "pet", Moments), ("muon", "pet", Moments), ("sgd", "moments", Moments), ("adamw", "moments", Moments)],
)
def test_pet_is_flows_for_sgd_and_averages_memories_of_every_other_optimiser(optimizer, mix, chosen):
    agreed = manifest(optimizer=OptimizerSection(kind=optimizer, lr=0.002), mix=mix)
    assert type(mixer(agreed)) is chosen
    assert averages_memories(agreed) == (chosen is Moments)
    assert manifests.check(agreed) == []


@pytest.mark.parametrize(("kind", "mix"), [("sgd", "pet"), ("adamw", "dsgd")])
def test_engines_clip_gradients_as_the_loop_does(kind, mix):
    """The loop averages no memories."""
    optimizer = OptimizerSection(kind=kind, lr=0.002, clip_norm=0.3)
    agreed = manifest(mix=mix, optimizer=optimizer, rounds=3, local_steps=3)
    assert_same_bits_and_other_than(agreed, msgspec.structs.replace(agreed, optimizer=optimizer.changed(clip_norm=None)))


def test_with_kappa_0_sgd_is_averaged_plainly():
    optimizer = OptimizerSection(lr=0.02)
    agreed = manifest(optimizer=optimizer, mix=MixSection(kappa=0.0), rounds=2, local_steps=2)
    one, local = reference(agreed, Everything())
    other, local_plain = reference(msgspec.structs.replace(agreed, mix=MixSection(kind="dsgd")), Everything())
    for turn in range(agreed.pace.rounds):
        one.round(phase(agreed, turn), local, matching(turn))
        other.round(phase(agreed, turn), local_plain, matching(turn))
    assert torch.equal(one.x, other.x)


def bowls(kind, rounds, *, lr=0.05, local_steps=5, **params):
    """Return the relative squared distance to the common optimum and the consensus distance, with exact gradients and codecs."""
    agreed = manifest("quadratic", params={"nodes": 4, "dim": 20, "dtype": "float64"})
    made = task(agreed.task.kind, agreed.task.params())
    data = [made.data(Source(None, agreed.partition, shard, 0), "cpu") for shard in range(4)]
    exact = quantizer("identity", torch.float64)
    swarm = Reference(
        peers=PEERS,
        x=torch.zeros(4, 20, dtype=torch.float64),
        mixer=MIXERS.build("mix", kind, params),
        codec=ExchangeCodec(exact, exact, 0.0, clip),
        selector=Everything(),
        seed=0,
    )
    local = descent(lambda node, x, _r, _s: data[node].bowl.A @ (x - data[node].bowl.b), steps=local_steps, lr=lr)
    for turn in range(rounds):
        swarm.round(Phase(turn, local_steps, lr), local, matching(turn))
    best = made.optimum(range(4), 0)
    error = (swarm.x - best).square().sum(1).mean() / best.square().sum()
    return float(error), consensus_distance(swarm.x)


@pytest.mark.slow
def test_tracked_swarms_reach_the_common_optimum_and_plain_averaging_does_not():
    """The product's central claim, on nodes with different local optima."""
    pet = {"kappa": 0.2, "flow_limit": 1e6}
    for kind, lr, params in (("pet", 0.05, pet), ("gradient_tracking", 0.02, {})):
        error, distance = bowls(kind, 600, lr=lr, **params)
        assert error < 1e-10
        assert distance < 1e-4
    error, distance = bowls("dsgd", 600)
    assert error > 1e-4
    assert distance > 1e-2


def test_the_smaller_peer_id_initiates():
    """As in edges; the initiator's and the responder's values are rounded differently."""
    agreed = manifest(rounds=1, local_steps=1)
    swarm, local = reference(agreed, Mask(0.5))
    swarm.round(phase(agreed, 0), local, matching(0))
    assert swarm.turns == {(1, 0): 1, (3, 2): 1}
