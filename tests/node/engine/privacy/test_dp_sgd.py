"""Differential privacy of a node's own data: the guarantee of the mechanism, and that nothing leaves the node around it."""

import math

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.rng import generator
from starling.node.config import schema
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.privacy import dp_sgd
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.privacy.dp_sgd import PrivateGradients, clipped_sum
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.tasks.api import Sampled, Source
from starling.node.tasks.digits import Digits
from starling.node.tasks.text import Text
from tests.harness.engines import done, every, exchange, manifest, open_request, opened, refused_as
from tests.harness.sections import taken
from tests.strategies import examples

PRIVATE = schema.PrivacySection(noise=1.0)
ZEROS = bytes
"""Entropy that is none: the same every time."""


def counted(label):
    return lambda count: torch.randint(256, (count,), dtype=torch.uint8, generator=generator(0, label)).numpy().tobytes()


def private_engine(section, agreed=None, *, node="a", shard=0, checkpoint="", entropy=ZEROS):
    engine = Worker(clock=lambda: 0.0, entropy=entropy)
    call = msgspec.structs.replace(open_request(agreed or digits(), shard, node, checkpoint), privacy=section)
    return engine, engine.handle(call)


def digits(mix="dsgd", *, shards=1, batch=64, **pace):
    agreed = manifest(mix=mix, optimizer=schema.OptimizerSection(lr=0.1), **{"rounds": 1, "local_steps": 5} | pace)
    return msgspec.structs.replace(
        agreed, task=schema.TaskSection(kind="digits", batch_size=batch), partition=schema.PartitionSection(kind="iid", shards=shards)
    )


def mechanism(section=PRIVATE, task=None, *, shard=0, shards=4, batch=32, path=None, source=None):
    task = task or Digits()
    data = task.data(Source(source, schema.PartitionSection(kind="iid", shards=shards), shard, 0), "cpu")
    about = schema.Manifest(task=schema.TaskSection(batch_size=batch))
    model = LocalModel(about, "a", task, data, lambda: task.model(generator(1, "model")), "cpu")
    model.bind()
    return PrivateGradients(section, model, Csprng(ZEROS), path), model.module, data


@given(rows=st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=6), norm=st.floats(0.01, 100.0))
@examples(100)
def test_one_sample_more_or_less_moves_the_sum_by_at_most_the_clip_norm(rows, norm):
    """The sensitivity that the noise is scaled to, for every set of gradients: C if a sample is added or removed, 2C if one is
    replaced. Adjacent data sets differ by one sample added or removed.
    """
    rows = torch.tensor(rows, dtype=torch.float64)
    whole = clipped_sum(rows, norm)
    for left_out in range(len(rows)):
        rest = clipped_sum(torch.cat((rows[:left_out], rows[left_out + 1 :])), norm)
        assert torch.linalg.vector_norm(whole - rest) <= norm * (1 + 1e-9)


def test_short_gradients_are_unchanged_and_nan_gradients_count_as_zero():
    rows = torch.tensor([[0.3, 0.4], [math.nan, 1.0], [3.0, 4.0], [math.inf, 0.0]])
    torch.testing.assert_close(clipped_sum(rows, 1.0), torch.tensor([0.3 + 0.6, 0.4 + 0.8]))


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_the_sum_is_that_of_each_samples_own_clipped_gradient(monkeypatch, chunk):
    """The reference takes one backward pass per sample; the size of the chunks that bound memory changes nothing."""
    monkeypatch.setattr(dp_sgd, "CHUNK_BYTES", chunk * 4810 * 4)
    private, model, data = mechanism(schema.PrivacySection(noise=1.0, clip_norm=0.7))
    index = torch.tensor([3, 3, 17, 40, 101])
    total, losses = private.clipped(index)
    expected, alone = torch.zeros(4810, dtype=torch.float64), []
    for sample in index:
        model.zero_grad()
        loss = Digits().loss(model, data.take(sample[None]))
        loss.backward()
        row = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]).double()
        expected += row * min(1.0, 0.7 / float(row.norm()))
        alone.append(float(loss.detach()))
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(losses, torch.tensor(alone))


@pytest.mark.parametrize("task", [Digits(model="cnn"), Text(context=16, width=16, layers=1, heads=2)], ids=["cnn", "text"])
def test_convolutions_and_attention_are_learned_sample_by_sample(task, tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 4)
    source = tmp_path if isinstance(task, Text) else None
    private, model, data = mechanism(schema.PrivacySection(noise=1.0, clip_norm=1e6), task, source=source)
    index = torch.arange(0, data.units, max(1, data.units // 5))
    total, _ = private.clipped(index)
    model.zero_grad()
    task.loss(model, data.take(index)).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]).double() * len(index)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)


def test_windows_of_text_that_can_be_drawn_share_no_byte(tmp_path):
    """Each byte belongs to one sample, since the guarantee is for a sample."""
    data = Text(context=9, width=16, layers=1, heads=2).data(_text(tmp_path), "cpu")
    assert isinstance(data, Sampled)
    windows = data.take(torch.arange(data.units))
    assert windows.shape == (data.units, 10)
    assert len(windows.reshape(-1).unique()) == windows.numel(), "every byte of this text is another"


def _text(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(120)))
    (tmp_path / "b.txt").write_bytes(bytes(range(120, 256)))
    return Source(tmp_path, schema.PartitionSection(kind="iid", shards=1), 0, 0)


def test_the_noise_is_gaussian_of_the_promised_size_on_every_number():
    from scipy.stats import kstest

    noise = Csprng(ZEROS).noised(torch.zeros(100_001, dtype=torch.float64), 2.5)
    assert abs(float(noise.mean())) < 4 * 2.5 / math.sqrt(100_001)
    assert float(noise.std()) == pytest.approx(2.5, rel=0.01)
    assert kstest((noise / 2.5).numpy(), "norm").pvalue > 1e-3
    halves = noise[:50_000], noise[50_000:100_000]
    assert abs(float(torch.corrcoef(torch.stack(halves))[0, 1])) < 4 / math.sqrt(50_000)


def test_a_step_is_the_sum_of_a_random_batch_with_that_noise_over_the_batch_size():
    """With gradients clipped to almost nothing only the noise remains: noise · C / (qn) on every coordinate."""
    private, _, _ = mechanism(schema.PrivacySection(noise=3e5, clip_norm=1e-5))
    steps = torch.cat([private.gradient()[0] for _ in range(4)])
    assert float(steps.std()) == pytest.approx(3.0 / 32, rel=0.02)


def test_every_sample_is_drawn_apart_from_all_others_and_a_step_without_any_is_noise_alone():
    """Poisson sampling: the size of a batch is binomial, and draws are independent."""
    private, _, data = mechanism()
    sizes, summed = [], private.clipped
    private.clipped = lambda index: (sizes.append(len(index)), (torch.zeros(4810), torch.zeros(0)))[1]
    for _ in range(400):
        private.gradient()
    sizes = torch.tensor(sizes, dtype=torch.float64)
    spread = 32 * (1 - 32 / data.units)
    assert float(sizes.mean()) == pytest.approx(32, abs=4 * math.sqrt(spread / 400))
    assert float(sizes.var()) == pytest.approx(spread, rel=0.3)
    private.clipped, private.rate = summed, 1e-12
    gradient, loss = private.gradient()
    assert math.isnan(loss)
    assert bool((gradient != 0.0).all())


def test_the_same_node_never_draws_the_same_noise_again():
    """It comes from the operating system, not from the swarm's seed, which every peer has and could subtract."""

    def after_one_step(**entropy):
        engine = Worker(clock=lambda: 0.0, **entropy)
        assert isinstance(engine.handle(msgspec.structs.replace(open_request(digits()), privacy=PRIVATE)), calls.Opened)
        done(engine, calls.Train(0, 1))
        return engine.vector.numpy().tobytes()

    given = after_one_step(entropy=ZEROS)
    assert given == after_one_step(entropy=ZEROS)
    assert len({given, after_one_step(), after_one_step()}) == 3


def test_without_noise_training_is_unchanged(tmp_path):
    engines = (opened(digits()), private_engine(schema.PrivacySection(clip_norm=1e-3, max_epsilon=1.0), checkpoint=tmp_path / "c")[0])
    replies = [done(engine, calls.Train(0, 5)) for engine in engines]
    assert torch.equal(engines[0].vector, engines[1].vector)
    assert replies[0] == replies[1]
    assert replies[1].figures.epsilon is None
    done(engines[1], calls.Stop())
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.slow
def test_digits_are_learned_under_moderate_noise():
    """ε = 4.9 at δ = 1e-5 for 1,437 samples: .93 of the test images, .94 to .95 without noise."""
    agreed = msgspec.structs.replace(digits(batch=128), optimizer=schema.OptimizerSection(lr=0.2))
    engine, _ = private_engine(schema.PrivacySection(noise=1.5), agreed)
    trained = done(engine, calls.Train(0, 200))
    assert done(engine, calls.Evaluate()).value >= 0.88
    assert 4.5 < trained.figures.epsilon < 5.0


@pytest.mark.parametrize(
    ("mix", "more"),
    [*((mix, {}) for mix in sorted(set(MIXERS) - {"gather", "sparse_outer", "seeds"})), ("dsgd", {"turns": ("0.*", "2.*")})],
)
def test_everything_sent_is_computed_from_noised_gradients(monkeypatch, mix, more):
    """If all noised gradients are equal, two nodes with different data send the same requests, answers and models, byte for byte. So
    optimisers, trackers and corrections cost no more privacy, and nothing bypasses the noise.
    """
    monkeypatch.setattr(Csprng, "noised", lambda _csprng, x, deviation: torch.linspace(-1.0, 1.0, x.numel()))
    agreed = msgspec.structs.replace(
        digits(taken(schema.MixSection, kind=mix, gamma=0.3, **more), shards=4),
        compress=schema.CompressSection(select="full"),
        optimizer=schema.OptimizerSection(lr=0.05, momentum=0.0),
    )
    sent, losses = [], set()
    for shard in (0, 1):
        engines = {"a": private_engine(PRIVATE, agreed, shard=shard)[0], "b": opened(agreed, 2, "b")}
        every(engines, calls.Train(0, 3))
        asked, _ = exchange(engines, "a", "b", seq=1)
        every(engines, calls.Mix(0))
        losses.add(done(engines["a"], calls.Train(1, 3)).figures.loss)
        again = done(engines["a"], calls.Offer("b", 0, 2, 1, 0.5, 0))
        sent.append((asked, again, done(engines["a"], calls.Snapshot()).digest, engines["a"].vector.numpy().tobytes()))
    assert sent[0] == sent[1]
    assert len(losses) == 2, "the loss, which stays here, is of the data themselves"


def test_alternating_adapters_cost_the_privacy_of_the_whole_model():
    """Each step uses the data, whichever block it trains; all trained numbers are noised."""
    spent = []
    for turns in ((), ("lora_b", "lora_a")):
        agreed = msgspec.structs.replace(
            manifest("tests.harness.adapters:Adapters", mix=schema.MixSection(kind="dsgd", turns=turns), rounds=2, local_steps=5),
            partition=schema.PartitionSection(kind="iid", shards=8),
            compress=schema.CompressSection(select="full"),
            optimizer=schema.OptimizerSection(lr=0.02, momentum=0.0),
        )
        engine, _ = private_engine(PRIVATE, agreed)
        done(engine, calls.Train(0, 5))
        done(engine, calls.Mix(0))
        before = engine.vector.clone()
        spent.append(done(engine, calls.Train(1, 5, turn=1)).figures.epsilon)
        moved = engine.vector != before
        assert moved[:128].all(), "lora_a is first in the vector"
        assert moved[128:].any() == (not turns)
    assert spent[0] == spent[1] > 0.0


def gathering(rule):
    return msgspec.structs.replace(
        digits("gather", shards=4),
        compress=schema.CompressSection(select="full", response="fp16"),
        overlay=schema.OverlaySection(kind="pull", k=3),
        robust=taken(schema.RobustSection, rule=rule, f=1),
    )


def test_published_vectors_are_computed_from_noised_gradients(monkeypatch):
    """The same for pulled vectors, combined by a rule with a memory of its own."""
    monkeypatch.setattr(Csprng, "noised", lambda _csprng, x, deviation: torch.linspace(-1.0, 1.0, x.numel()))
    payloads = []
    for shard in (0, 1):
        engine, _ = private_engine(PRIVATE, gathering("cs_plus"), shard=shard)
        others = {name: opened(gathering("cs_plus"), 2, name) for name in "bcd"}
        for each in (engine, *others.values()):
            done(each, calls.Train(0, 3))
        first = done(engine, calls.Publish(0))
        for name, other in others.items():
            published = done(other, calls.Publish(0))
            done(engine, calls.VerifyUpdate(name, published.digest, published.payload))
        done(engine, calls.Mix(0, tuple(others)))
        done(engine, calls.Train(1, 3))
        payloads.append((first, done(engine, calls.Publish(1))))
    assert payloads[0] == payloads[1]


def test_a_node_whose_budget_is_spent_mixes_on_without_using_its_data():
    """Its further steps have a zero gradient, which costs no privacy; corrections and exchanges continue, so others do not wait."""
    agreed = digits("pet", shards=2, rounds=9)
    engine, _ = private_engine(schema.PrivacySection(noise=1.0, max_epsilon=4.0), agreed, node="a")
    other = opened(agreed, 1, "b")
    engines = {"a": engine, "b": other}
    replies = []
    for turn in range(30):
        replies.append(done(engine, calls.Train(turn, 5)))
        done(other, calls.Train(turn, 5))
        exchange(engines, "a", "b", seq=turn + 1, round=turn)
        every(engines, calls.Mix(turn))
    assert [reply.figures.epsilon for reply in replies] == sorted(reply.figures.epsilon for reply in replies)
    assert 3.7 < replies[-1].figures.epsilon <= 4.0
    assert replies[0].halted == ""
    assert replies[-1].halted == "epsilon would exceed privacy.max_epsilon = 4"
    assert math.isnan(replies[-1].figures.loss)
    assert replies[-1].undone == 0
    before = engine.vector
    done(engine, calls.Train(30, 5))
    assert not torch.equal(engine.vector, before), "it goes where the correction says"


@pytest.mark.parametrize("way", ["stopped", "crashed"])
def test_a_restart_keeps_the_privacy_spent(tmp_path, way):
    """Exact after an orderly stop. After a crash it is more by at most the steps written ahead; never less, even without a checkpoint."""
    path = tmp_path / "c.safetensors"
    engine, reply = private_engine(PRIVATE, checkpoint=path)
    assert reply.figures.epsilon == 0.0
    done(engine, calls.Save())
    spent = done(engine, calls.Train(0, 70)).figures.epsilon
    if way == "stopped":
        done(engine, calls.Stop())
    second, reply = private_engine(PRIVATE, checkpoint=path)
    assert reply.resumed
    assert reply.figures.epsilon == spent if way == "stopped" else spent < reply.figures.epsilon < 2 * spent
    assert done(second, calls.Train(1, 1)).figures.epsilon > reply.figures.epsilon
    path.unlink()
    assert private_engine(PRIVATE, checkpoint=path)[1].figures.epsilon > reply.figures.epsilon
    for _ in range(3):
        engine, _ = private_engine(schema.PrivacySection(noise=1.0, max_epsilon=3.0), checkpoint=tmp_path / "d")
        trained = done(engine, calls.Train(0, 100))
        assert trained.figures.epsilon <= 3.0
    assert trained.halted


@pytest.mark.parametrize("pace", ["steps", "clock"])
def test_noise_on_vectors_sent_leaves_exchanges_antisymmetric(pace):
    """Both ends apply the same noised numbers: the mean is preserved, and flows stay opposite."""
    exact = schema.CompressSection(select="full", request="identity", response="identity")
    agreed = manifest(mix=schema.MixSection(kind="pet", defended=False), pace=pace, compress=exact)  # which bounds each end by itself
    engines = {
        name: private_engine(schema.PrivacySection(exchange_noise=0.01), agreed, node=name, shard=shard, entropy=counted(name))[0]
        for shard, name in enumerate("ab")
    }
    for engine in engines.values():
        if pace == "steps":
            done(engine, calls.Train(0, 5))
        else:
            done(engine, calls.Free(on=True, round=0))
            engine.step()
            done(engine, calls.Free(on=False, round=0))
    before = {name: engine.vector for name, engine in engines.items()}
    exchange(engines, "a", "b", seq=1)
    if pace == "steps":
        every(engines, calls.Mix(0))
    moved = {name: engine.vector - before[name] for name, engine in engines.items()}
    torch.testing.assert_close(moved["a"], -moved["b"], rtol=0, atol=1e-6)
    assert torch.equal(engines["a"].replica.memory.ledger.total, -engines["b"].replica.memory.ledger.total)
    meant = 0.5 * (before["b"] - before["a"])
    assert float((moved["a"] - meant).std()) == pytest.approx(0.5 * math.sqrt(2) * 0.01, rel=0.1)


def test_all_vectors_sent_are_noised():
    from starling.node.engine import tensor_file

    agreed = manifest(mix="dsgd", compress=schema.CompressSection(select="full", request="identity", response="identity"))
    engine, _ = private_engine(schema.PrivacySection(exchange_noise=0.01), agreed)
    done(engine, calls.Train(0, 2))
    asked = done(engine, calls.Offer("b", 0, 1, 0, 0.5, 0)).payload
    held = done(engine, calls.Snapshot())
    snapshot = tensor_file.unpack(done(engine, calls.ReadChunk(held.snapshot, 0, held.size)).data)[0]["x"]
    request = torch.frombuffer(bytearray(asked[-4 * 4810 :]), dtype=torch.float32)
    plain = opened(agreed)
    done(plain, calls.Train(0, 2))
    assert torch.equal(engine.vector, plain.vector)
    for sent in (request, snapshot):
        assert float((sent - engine.vector).std()) == pytest.approx(0.01, rel=0.05)


class Unruly(Digits):
    def loss(self, model, batch):
        return super().loss(model, batch) * (2.0 if float(batch[0].sum()) > 0.0 else 1.0)


class Normed(Digits):
    def model(self, generator):
        return nn.Sequential(super().model(generator), nn.BatchNorm1d(10))


@pytest.mark.parametrize(
    ("agreed", "section", "words"),
    [
        (manifest("quadratic"), PRIVATE, "'quadratic' has no single samples to draw; set privacy.noise to 0"),
        (manifest("tests.node.engine.privacy.test_dp_sgd:Normed"), PRIVATE, "has batch normalisation"),
        (manifest("tests.node.engine.privacy.test_dp_sgd:Unruly"), PRIVATE, "cannot differentiate sample by sample"),
        (gathering("ubar"), PRIVATE, "robust.rule = 'ubar' chooses models by their losses on this node's data"),
        (digits("push_sum"), schema.PrivacySection(exchange_noise=0.1), "privacy.exchange_noise: must be 0 with mix.kind = 'push_sum'"),
    ],
    ids=["no_samples", "batch_norm", "unruly", "losses", "swaps"],
)
def test_impossible_requests_are_refused_in_one_line(agreed, section, words):
    _, reply = private_engine(section, agreed)
    refused_as("config", reply, words)
