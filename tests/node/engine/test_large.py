"""Differences for large models: corrections in place, flows in bfloat16 from creation on, and flows in fragments."""

import itertools

import pytest
import torch
from msgspec import structs

from starling.gossip.api import Phase
from starling.gossip.compress import budget
from starling.gossip.compress.budget import WHOLE, affordable
from starling.gossip.compress.support import Fragment
from starling.gossip.mix import rows
from starling.gossip.mix.pet import Pet
from starling.kernels import memory
from starling.node.config import large
from starling.node.config.schema import CompressSection, Manifest, MixSection, OptimizerSection, TaskSection
from starling.node.engine.local import local_model
from starling.node.rpc import calls
from tests.harness.engines import Inside, open_request
from tests.harness.sections import taken

PARTS = 4
PHASE = Phase(0, 3.0, 0.1)


def test_a_vector_in_blocks_is_corrected_as_a_row_of_an_array(monkeypatch):
    """Over rounds of three steps; the last block is shorter, and one part has no flow yet."""
    monkeypatch.setattr(rows, "BLOCK", 300)
    mixer, chance = Pet(), torch.Generator().manual_seed(0)
    truth = torch.randn(1000, generator=chance)
    truth[700:] = 0.0
    states = [mixer.corrected(mixer.start(torch.zeros_like(like)), like.clone()) for like in (truth[None], truth)]
    shares = set()
    for step in range(60):
        right = 1.0 if step >= 30 else 0.02
        gradient = right * truth + 0.5 * torch.randn(1000, generator=chance)
        wanted, states[0] = mixer.correct(states[0], gradient[None])
        found, states[1] = mixer.correct(states[1], gradient)
        torch.testing.assert_close(found, wanted[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(states[1].known, states[0].known[0], rtol=1e-5, atol=1e-6)
        shares.add(round(float((gradient - found) @ truth / (truth @ truth)), 2))
        if step % 3 == 2:
            states = [mixer.absorb(mixer.publish(state, truth, PHASE)[1], truth, truth, PHASE)[1] for state in states]
    assert 1.0 in shares
    assert min(shares) < 0.5, "some of the correction is not borne out"


def test_correcting_in_place_takes_the_gradients_memory_and_leaves_the_correction():
    mixer = Pet()
    gradients = torch.randn(30, 500, generator=torch.Generator().manual_seed(1))
    states = [mixer.corrected(mixer.start(gradients[0]), gradients[0].clone()) for _ in range(2)]
    for step, gradient in enumerate(gradients):
        wanted, states[0] = mixer.correct(states[0], gradient)
        found, states[1] = mixer.correct_in_place(states[1], given := gradient.clone(), step)
        assert found is given
        assert torch.equal(found, wanted)
    assert torch.equal(states[1].c, gradients[0])


def test_without_flows_a_gradient_is_not_touched():
    """Before the first exchange nothing is subtracted, whatever the correction consists of."""
    gradient = torch.randn(200, generator=torch.Generator().manual_seed(1))
    mixer, given = Pet(), gradient.clone()
    state = mixer.corrected(mixer.start(gradient), torch.zeros(200))
    for step in range(3):
        direction, state = mixer.correct_in_place(state, given, step)
        assert direction is given
    assert torch.equal(given, gradient)
    assert mixer.correct(state, gradient)[0].equal(gradient)
    later = torch.zeros(2000)
    later[-1] = 1.0
    state = mixer.corrected(mixer.start(later), later)
    assert float(state.known[0]) == 1.0, "however few coordinates of it have moved"


def test_creation_records_the_format_of_flows_for_large_models_only():
    def of(width, kind="sgd", **mix):
        task = TaskSection(kind="text", path="x", width=width, layers=6, heads=4, context=16)
        return Manifest(task=task, mix=MixSection(kind="pet", **mix), optimizer=OptimizerSection(kind=kind))

    assert large.sealed(of(256)).mix.flows == "bfloat16"
    assert large.sealed(of(256, flows="float32")).mix.flows == "float32"
    assert large.sealed(of(16)).mix.flows is None
    assert large.sealed(of(256, "adamw")).mix.flows is None, "it has no flows"
    assert [affordable(dim) for dim in (WHOLE, 2 * WHOLE, 100 * WHOLE)] == [1.0, 0.5, 0.125]


@pytest.mark.parametrize(("work_s", "fewer"), [(1.0, True), (0.0, False)])
def test_exchanges_as_long_as_local_steps_send_fewer_coordinates(work_s, fewer, tmp_path, monkeypatch):
    """Each reading of the clock is a second later, so a local step takes one; a call of an exchange takes as much processor time, or none.
    The elapsed time of a call does not matter, since a gradient may be computed meanwhile.
    """
    monkeypatch.setattr(budget, "WHOLE", 4096)
    agreed = memory.manifest("flows+whole", 20_000, tmp_path)
    agreed = structs.replace(agreed, compress=CompressSection())
    ends = [
        Inside(open_request(agreed, shard, label), itertools.count(0.0, 1.0).__next__, itertools.count(0.0, work_s).__next__)
        for shard, label in enumerate(("hub", "peer"))
    ]
    sent = []
    for turn in range(8):
        for end in ends:
            end.done(calls.Train(turn, 1))
        offered = ends[0].done(calls.Offer("peer", 0, turn + 1, turn, 0.2, 0))
        sent.append(len(offered.payload))
        asked = calls.Answer("hub", 0, turn + 1, turn, 0.2, offered.gain, offered.payload)
        answered = ends[1].done(asked)
        ends[0].done(calls.Apply("peer", 0, turn + 1, answered.payload))
        ends[1].done(calls.Commit("hub", 0, turn + 1))
        for end in ends:
            end.done(calls.Mix(turn))
    assert (sent[-1] < sent[0] / 2) == fewer, sent


@pytest.mark.parametrize("large_", [False, True])
def test_flows_in_fragments_agree_at_both_ends_and_are_settled_and_revoked(large_, tmp_path, monkeypatch):
    """Flows are opposite bit for bit; a settled one stays in the sum, a revoked one leaves it, with all its parts."""
    monkeypatch.setattr(local_model, "LARGE", 1000 if large_ else 1 << 20)
    agreed = memory.manifest("flows", 20_000, tmp_path)
    agreed = structs.replace(agreed, compress=taken(CompressSection, select="fragment", parts=PARTS))
    one, other = (Inside(open_request(agreed, shard, label)) for shard, label in enumerate(("hub", "peer")))
    for turn in range(PARTS):
        for end in (one, other):
            end.done(calls.Train(turn, memory.STEPS))
        for number in range(2):
            memory.exchange(one, other, f"p{number}", turn, leads=number % 2 == 0)
        for end in (one, other):
            end.done(calls.Mix(turn))
    ours, theirs = (end.engine.replica for end in (one, other))
    for number in range(2):
        flow = ours.memory.ledger.flows[f"p{number}"]
        assert torch.equal(flow, -theirs.memory.ledger.flows[f"hub of p{number}"])
        for part in range(PARTS):
            assert Fragment(part, PARTS).take(flow).any()
    before = ours.memory.ledger.total.clone()
    one.done(calls.Settle("p0"))
    assert torch.equal(ours.memory.ledger.total, before)
    one.done(calls.Revoke("p0"))
    assert torch.equal(ours.memory.ledger.total, ours.memory.ledger.flows["p1"])
    one.done(calls.Revoke("p1"))
    assert not ours.memory.ledger.total.any()
    assert ours.state.c is ours.memory.ledger.total
