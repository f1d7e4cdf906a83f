"""Sparse outer steps: outer parameters stay bitwise equal, nothing is lost except by decay, and a liar's effect is bounded."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import SELECTORS, quantizer
from starling.gossip.errors import ConfigError
from starling.gossip.mix.broadcast_codec import ANCHOR_BYTES, BroadcastCodec, anchor_digest
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.sparse_outer import SparseOuter, shortening
from starling.node.config import manifest as manifests
from starling.node.config.overlay import check_members
from starling.node.config.schema import CompressSection, Manifest, MixSection, OverlaySection, PaceSection
from tests.harness.sections import taken
from tests.strategies import examples, seeds

D, N, CHUNK = 300, 4, 64
PHASE = Phase(0, 1.0, 0.1)
PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"


def codec_of(name, ratio=0.1, dtype=torch.float32):
    return BroadcastCodec(SELECTORS.build("compress", "chunk_top_k", {"ratio": ratio, "chunk": CHUNK}), quantizer(name, dtype))


CODEC, SIGNS = codec_of("spread2"), codec_of("spread1")
EXACT = BroadcastCodec(SELECTORS.build("compress", "full", {}), quantizer("identity", torch.float64))
shares, rates = st.sampled_from([0.0, 0.3, 0.9]), st.sampled_from([0.5, 1.0, 1.3])


def gaussian(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def progressed(mixer, states, moves, codec=CODEC, present=None):
    """Do one round of all nodes with local changes `moves` (n, d); return their states."""
    vectors = [mixer.shared(state, mixer.begun(state) + move) for state, move in zip(states, moves, strict=True)]
    messages = torch.stack([codec.rounded(vector) for vector in vectors])
    arrived = torch.ones(len(states), dtype=torch.bool) if present is None else present
    return [mixer.advance(state, vector, sent, messages, arrived)[0] for state, vector, sent in zip(states, vectors, messages, strict=True)]


@given(seed=seeds, decay=st.sampled_from([0.0, 0.5, 0.95, 1.0]), residual=shares, signs=st.booleans())
@examples(10)
def test_outer_parameters_stay_bitwise_equal_and_models_differ(seed, decay, residual, signs):
    mixer, codec = SparseOuter(decay, residual), SIGNS if signs else CODEC
    states = [mixer.start(gaussian(1, D)) for _ in range(N)]
    for round_ in range(20):
        states = progressed(mixer, states, gaussian(seed % 10**6 + round_, N, D), codec)
        assert len({anchor_digest(mixer.settled(state)) for state in states}) == 1
    begun = [mixer.absorb(state, state.anchor, state.anchor, PHASE)[0] for state in states]
    assert len({anchor_digest(x) for x in begun}) == (N if residual else 1)


def before_residuals(decay, bound, states, moves, codec):
    """Compute a round of the recursion without residual and outer_lr: (φ, e) of each node -> the same after a round."""
    vectors = [decay * e + ((phi + move) - phi) for (phi, e), move in zip(states, moves, strict=True)]
    messages = torch.stack([codec.rounded(vector) for vector in vectors])
    factors = shortening(messages, torch.ones(len(states), dtype=torch.bool), bound)
    total = torch.zeros_like(vectors[0])
    for factor, message in zip(factors, messages, strict=True):
        total = total + factor * message
    return [(phi + total / len(states), vector - message) for (phi, _), vector, message in zip(states, vectors, messages, strict=True)]


@given(seed=seeds, decay=st.sampled_from([0.0, 0.95, 1.0]), bound=st.sampled_from([0.0, 1.0, 3.0]))
@examples(10)
def test_without_residual_at_rate_1_it_equals_the_former_rule_bit_for_bit(seed, decay, bound):
    mixer, first = SparseOuter(decay, residual=0.0, outer_lr=1.0, norm_bound=bound), gaussian(1, D)
    states, old = [mixer.start(first)] * N, [(first, torch.zeros(D))] * N
    for round_ in range(5):
        moves = gaussian(seed % 10**6 + round_, N, D)
        moves[round_ % N] *= 10.0  # one is clipped, where there is a bound
        states, old = progressed(mixer, states, moves), before_residuals(decay, bound, old, moves, CODEC)
        for state, (phi, owed) in zip(states, old, strict=True):
            assert torch.equal(state.anchor, phi)
            assert torch.equal(state.owed, owed)
            assert torch.equal(mixer.absorb(state, first, first, PHASE)[0], phi)


@given(seed=seeds, residual=shares, outer_lr=rates, signs=st.booleans())
@examples(10)
def test_sent_and_residual_changes_sum_to_the_whole(seed, residual, outer_lr, signs):
    """φ_T − φ_0 = λ·Σ_t (1/n) Σ_j q_j; and with decay 1 Σ_t (x_i − s_i) = Σ_t q_i + e_i per node: the residual has what was not sent."""
    mixer, first = SparseOuter(1.0, residual, outer_lr, norm_bound=0.0), gaussian(1, D).double()
    states, done = [mixer.start(first)] * N, torch.zeros(N, D, dtype=torch.float64)
    sent = torch.zeros_like(done)
    for round_ in range(5):
        moves = gaussian(seed % 10**6 + round_, N, D).double()
        done += moves
        vectors = [mixer.shared(state, mixer.begun(state) + move) for state, move in zip(states, moves, strict=True)]
        sent += torch.stack([(SIGNS if signs else CODEC).rounded(vector) for vector in vectors])
        states = progressed(mixer, states, moves, SIGNS if signs else CODEC)
    for node, state in enumerate(states):
        torch.testing.assert_close(state.anchor - first, outer_lr * sent.mean(0), rtol=0, atol=1e-9)
        torch.testing.assert_close(sent[node] + state.owed, done[node], rtol=0, atol=1e-9)


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.9])
def test_whole_exact_messages_are_local_sgd(residual):
    """There is no residual, and with outer rate 1 the outer parameters are the mean model."""
    mixer = SparseOuter(residual=residual, outer_lr=1.0, norm_bound=0.0)
    first, moves = gaussian(1, D).double(), gaussian(2, 3, N, D).double()
    states = [mixer.start(first)] * N
    for each in moves:
        states = progressed(mixer, states, each, EXACT)
        assert not any(state.owed.any() for state in states)
    torch.testing.assert_close(states[0].anchor, first + moves.mean(1).sum(0))
    x, _ = mixer.absorb(states[0], first, first, PHASE)
    assert torch.equal(x, states[0].anchor)


def largest_of_chunks(e):
    """Return (d,) of bool: the ⌈ratio·length⌉ largest magnitudes of each chunk of a numpy vector."""
    chosen = np.zeros(len(e), bool)
    for start in range(0, len(e), CHUNK):
        part = np.abs(e[start : start + CHUNK])
        chosen[start + np.argsort(-part, kind="stable")[: math.ceil(0.1 * len(part))]] = True
    return chosen


def signs_of_kept(e):
    """Return the part of e (d,) that is sent in signs, in one bucket: with their mean magnitude, rounded up to eight significant bits."""
    chosen = largest_of_chunks(e)
    mean = np.abs(e[chosen]).mean()
    unit = 2.0 ** (math.floor(math.log2(mean)) - 7)
    return np.where(chosen, np.sign(e) * math.ceil(mean / unit) * unit, 0.0)


def formula():
    """Return (left side, right side) of each line of the round in docs/algorithms.md, as numpy expressions."""
    section = PAGE.read_text().split("### Sparse outer steps")[1].split("\n###")[0]
    rows = re.search(r"\\begin\{array\}\{ll\}\n(.+?)\n\\end", section, re.DOTALL)[1].splitlines()
    plain = [re.sub(r"\\(?:text|operatorname)\{([^}]*)\}", lambda it: it[1].replace(" ", "_"), row.split("&")[0]) for row in rows]
    read = [row.replace(r"\varphi", "φ").replace(r"\cdot", "*").replace(r"\leftarrow", "=") for row in plain]
    return [tuple(side.strip() for side in row.split("=")) for row in read]


@pytest.mark.parametrize(
    ("codec", "Q"),
    [(codec_of("identity", dtype=torch.float64), lambda e: np.where(largest_of_chunks(e), e, 0.0)), (SIGNS, signs_of_kept)],
    ids=["exact", "signs"],
)
@pytest.mark.parametrize("residual", [0.0, 0.3])
def test_it_equals_the_documented_recursion(codec, Q, residual):
    """In numpy, from the lines of the page, over thirty rounds of nodes that descend quadratics."""
    steps = formula()
    assert [left for left, _ in steps] == ["s", "x", "e", "q", "e", "φ"]
    mixer = SparseOuter(residual=residual)
    a, b = gaussian(1, N, D).abs().double() + 0.1, gaussian(2, N, D).double()
    states = [mixer.start(torch.zeros(D, dtype=torch.float64))] * N
    phi, owed = np.zeros(D), np.zeros((N, D))
    for _ in range(30):
        begun = torch.stack([mixer.begun(state) for state in states])
        states = progressed(mixer, states, -0.1 * a * (begun - b), codec)
        sent = np.zeros((N, D))
        for node in range(N):
            names = {"φ": phi, "e": owed[node], "decay": mixer.decay, "residual": residual, "Q": Q}
            names["local"] = lambda s, node=node: s - 0.1 * a[node].numpy() * (s - b[node].numpy())
            for left, right in steps[:-1]:
                names[left] = eval(right, names)
            owed[node], sent[node] = names["e"], names["q"]
        phi = eval(steps[-1][1], {"φ": phi, "outer_lr": mixer.outer_lr, "q": sent, "mean": lambda q: q.mean(0)})
    for node, state in enumerate(states):
        np.testing.assert_allclose(state.anchor.numpy(), phi, rtol=0, atol=1e-12)
        np.testing.assert_allclose(state.owed.numpy(), owed[node], rtol=0, atol=1e-12)


def test_absent_members_count_and_add_nothing():
    mixer = SparseOuter(outer_lr=1.5, norm_bound=0.0)
    states = [mixer.start(torch.zeros(D)) for _ in range(2)]
    moves = gaussian(2, 2, D)
    both = progressed(mixer, states, moves)[0].anchor
    one = progressed(mixer, states, moves, present=torch.tensor([True, False]))[0].anchor
    assert torch.equal(one, 1.5 * CODEC.rounded(moves[0]) / 2)
    assert not torch.equal(one, both)


def test_a_round_without_local_steps_keeps_the_residual():
    """Such a round has no progress, although the model differs from the outer parameters."""
    mixer = SparseOuter(1.0)
    state = progressed(mixer, [mixer.start(gaussian(1, D))] * N, gaussian(2, N, D))[0]
    x, state = mixer.absorb(state, state.anchor, state.anchor, PHASE)
    assert not torch.equal(x, state.anchor)
    assert torch.equal(mixer.shared(state, x), state.owed)


def test_a_restart_restores_the_residual_and_a_late_joiner_has_none():
    mixer = SparseOuter()
    state = progressed(mixer, [mixer.start(gaussian(1, D))] * N, gaussian(2, N, D))[0]
    x, again = mixer.resumed(mixer.start(mixer.settled(state)), mixer.kept(state))
    assert torch.equal(again.owed, state.owed)
    assert torch.equal(x, mixer.absorb(state, x, x, PHASE)[0])
    x, joined = mixer.resumed(mixer.start(mixer.settled(state)), {})
    assert not joined.owed.any()
    assert torch.equal(x, state.anchor)


@pytest.mark.parametrize("owed", [torch.zeros(D + 1), torch.full((D,), math.nan)])
def test_another_models_residual_is_refused(owed):
    mixer = SparseOuter()
    with pytest.raises(ValueError, match="another model"):
        mixer.resumed(mixer.start(torch.zeros(D)), {"owed": owed})


@given(seed=seeds, factor=st.sampled_from([10.0, 1e6]), outer_lr=rates)
@examples(20)
def test_one_liar_of_many_moves_the_outer_parameters_by_three_medians(seed, factor, outer_lr):
    """‖φ − φ of the honest alone‖ <= norm_bound·(median length)/n, whatever the liar sends, for every outer rate."""
    mixer, messages = SparseOuter(outer_lr=outer_lr), gaussian(seed % 10**6, 5, D)
    state, zero, present = mixer.start(torch.zeros(D)), torch.zeros(D), torch.ones(5, dtype=torch.bool)
    lie = messages.clone()
    lie[2] *= factor
    moved, shortened = mixer.advance(state, zero, zero, lie, present)
    honest = messages.clone()
    honest[2] = 0.0
    alone = SparseOuter(outer_lr=outer_lr, norm_bound=0.0).advance(state, zero, zero, honest, present)[0]
    longest = float(messages.norm(dim=1).sort().values[-1])
    assert float((moved.anchor - alone.anchor).norm()) <= 3.0 * longest / 5 * (1 + 1e-5)
    assert shortened.tolist() == [False, False, True, False, False]


def test_a_node_without_local_steps_does_not_lower_the_norm_bound():
    """With two members, one without local steps, the median would be 0 and cut the other's message to nothing."""
    mixer, messages = SparseOuter(), torch.stack((torch.zeros(D), gaussian(1, D)))
    state, zero = mixer.start(torch.zeros(D)), torch.zeros(D)
    moved, shortened = mixer.advance(state, zero, messages[0], messages, torch.ones(2, dtype=torch.bool))
    assert torch.equal(moved.anchor, mixer.outer_lr * messages[1] / 2)
    assert not shortened.any()


def test_inputs_are_not_modified():
    mixer, messages = SparseOuter(), gaussian(1, N, D)
    messages[1] *= 1e5
    kept, state = messages.clone(), mixer.start(torch.ones(D))
    mixer.advance(state, messages[0], messages[0], messages, torch.ones(N, dtype=torch.bool))
    assert torch.equal(messages, kept)
    assert torch.equal(state.anchor, torch.ones(D))


@given(seed=seeds, scale=st.sampled_from([0.0, 1e-30, 1.0, 1e30]))
@examples(10)
def test_a_message_fits_its_announced_length_and_names_its_outer_parameters(seed, scale):
    vector = gaussian(seed % 10**6, D) * scale
    message = CODEC.encode(vector, b"anchored")
    anchor, decoded = CODEC.decode(message, D, torch.float32)
    assert len(message) <= CODEC.longest(D)
    assert anchor == b"anchored"
    assert torch.equal(decoded, CODEC.rounded(vector))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"ratio": 0.2, "chunk": 64}, "bad_support"),  # more coordinates than agreed
        ({"ratio": 0.01, "chunk": 64}, "bad_support"),
        ({"ratio": 1.0, "chunk": 64}, "bad_support"),  # all of them
    ],
)
def test_a_message_with_another_number_of_coordinates_is_refused(other, reason):
    foreign = BroadcastCodec(SELECTORS.build("compress", "chunk_top_k", other), CODEC.quantizer)
    with pytest.raises(ValueError, match=reason):
        CODEC.decode(foreign.encode(gaussian(1, D), bytes(ANCHOR_BYTES)), D, torch.float32)


def test_a_message_cut_short_anywhere_is_refused():
    message = CODEC.encode(gaussian(1, D), bytes(ANCHOR_BYTES))
    for end in range(len(message)):
        with pytest.raises(ValueError, match=r"^bad_(length|support|indices)$"):
            CODEC.decode(message[:end], D, torch.float32)


def agreed(rounds=100, select="chunk_top_k", ratio=0.05, response="spread2", overlay="complete", decay=0.95):
    keys = {} if select == "full" else {"ratio": ratio}
    return Manifest(
        mix=taken(MixSection, kind="sparse_outer", decay=decay),
        overlay=OverlaySection(kind=overlay),
        compress=taken(CompressSection, select=select, response=response, **keys),
        pace=PaceSection(rounds=rounds),
    )


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"overlay": "ring"}, "overlay.kind: sparse_outer"),
        ({"select": "mask"}, "compress.select: sparse_outer"),
        ({"ratio": 0.3}, "compress.ratio: must be <= 0.25"),
        ({"response": "int4"}, "compress.response: all members"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_an_alternative(changed, complaint):
    manifests.check(agreed())
    with pytest.raises(ConfigError, match=complaint) as refused:
        manifests.check(agreed(**changed))
    assert "--set " in str(refused.value)


@pytest.mark.parametrize("decay", [1.0, 0.95, 0.9])
@pytest.mark.parametrize("rounds", [0, 5, 16, 30])
def test_a_run_may_have_any_number_of_rounds(rounds, decay):
    """Sixteen rounds of Muon on MNIST reach .949 without decay and .955 with .9, by the reference's script, one seed."""
    manifests.check(agreed(rounds=rounds, decay=decay))
    manifests.check(agreed(rounds=rounds, decay=decay, select="full"))


def test_too_many_members_are_refused():
    check_members(agreed(), 64)
    with pytest.raises(ConfigError, match="64"):
        check_members(agreed(), 65)


@pytest.mark.parametrize(
    "bad",
    [
        {"decay": 1.1},
        {"decay": -0.1},
        {"norm_bound": 0.5},
        {"outer_momentum": 0.9},
        {"residual": 1.0},
        {"residual": -0.1},
        {"outer_lr": 0.0},
        {"outer_lr": 2.0, "norm_bound": 1.9},
    ],
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ConfigError):
        MIXERS.build("mix", "sparse_outer", bad)
