"""State that changes without being trained: averaged if configured, else reported, stored, and given to late joiners."""

import pytest
import torch
from msgspec import structs
from torch import nn

from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.schema import CompressSection, Manifest
from starling.node.engine import tensor_file
from starling.node.engine.saved_buffers import SavedBuffers
from starling.node.engine.side_state import SideState, carried_buffers
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, every, exchange, manifest, open_request, opened, refused_as, run, x_of
from tests.harness.side_tasks import Beside, Codebook, Taught

KIND = "tests.harness.side_tasks:Beside"


def agreed(network, buffers=None, **keys):
    whole = CompressSection(request="identity", response="identity", select="full")
    made = manifest(KIND, params={"network": network}, nodes=2, compress=whole, **keys)
    return structs.replace(made, task=made.task.changed(buffers=buffers))


def pair(made, checkpoint=""):
    return {peer: opened(made, shard, peer, checkpoint and f"{checkpoint}-{peer}") for shard, peer in enumerate("ab")}


def rounds(engines, first=0, count=1):
    notes = []
    for turn in range(first, first + count):
        for engine in engines.values():
            notes += done(engine, calls.Train(turn, 3)).notes
        exchange(engines, "a", "b", seq=turn + 1, round=turn)
        every(engines, calls.Mix(turn))
    return notes


def module(engine):
    return engine.trainer.model.module


def loaded(engine):
    """Return the module with the state of its next computation."""
    engine.trainer.model.binding.load()
    return module(engine)


def test_buffers_stay_local_with_one_note_naming_those_that_change():
    engines = pair(agreed("codebook"))
    notes = rounds(engines, count=3)
    a, b = (module(engine) for engine in engines.values())
    assert not torch.equal(a.codes, b.codes)
    of_buffers = [note for note in notes if note.startswith("task.buffers: ")]
    assert len(of_buffers) == 2  # one a node
    assert "training changes codes, mean, seen, which stay at this node" in of_buffers[0]
    assert "norm" not in of_buffers[0]


@pytest.mark.parametrize("buffers", ["local", ("codes", "mean", "!seen")])
def test_configured_buffers_need_no_note(buffers):
    assert not rounds(pair(agreed("codebook", buffers)), count=2)


@pytest.mark.parametrize(("mix", "optimizer"), [("pet", "sgd"), ("pet", "adamw"), ("dsgd", "adamw"), ("quasi_global", "sgd")])
def test_averaged_buffers_are_the_mean_of_both_ends_and_parameters_follow_their_gradients(mix, optimizer):
    """A mix with weight one half makes models and buffers equal; the optimiser, with weight decay, moves no buffer."""
    made = agreed("codebook", "average", mix=mix)
    made = structs.replace(
        made,
        optimizer=made.optimizer.changed(kind=optimizer, weight_decay=0.1, lr=0.01, **({"momentum": 0.0} if optimizer == "sgd" else {})),
    )
    manifests.check(made)
    engines = pair(made)
    every(engines, calls.Train(0, 3))
    before = [(module(engine).codes.clone(), module(engine).mean.clone()) for engine in engines.values()]
    assert not torch.equal(before[0][0], before[1][0])
    exchange(engines, "a", "b", seq=1, round=0)
    every(engines, calls.Mix(0))
    a, b = (loaded(engine) for engine in engines.values())
    for own, both in ((a.codes, 0), (a.mean, 1)):
        assert torch.allclose(own, (before[0][both] + before[1][both]) / 2, atol=1e-6)
    assert torch.allclose(a.codes, b.codes, atol=1e-6)
    assert torch.equal(a.constant, torch.ones(8))
    assert not torch.equal(a.norm.running_mean, b.norm.running_mean)
    assert torch.allclose(*(x_of(engine) for engine in engines.values()), atol=1e-5)


def test_averaged_buffers_do_not_change_parameters_before_an_exchange():
    """Gradient and correction exclude the numbers after the parameters."""
    alone, beside = opened(agreed("codebook")), opened(agreed("codebook", "average"))
    for engine in (alone, beside):
        done(engine, calls.Train(0, 4))
    assert torch.equal(alone.trainer.model.trained, beside.trainer.model.trained)
    assert beside.vector.numel() == alone.vector.numel() + 16 + 8 + 8  # codes, mean, constant


def test_averaged_buffers_are_in_checkpoints_and_given_to_late_joiners(tmp_path):
    made = agreed("codebook", "average")
    engines = pair(made, tmp_path / "c")
    rounds(engines, count=2)
    done(engines["a"], calls.Stop())
    again, joiner = opened(made, 0, "a", tmp_path / "c-a"), opened(made, 1, "c")
    held = done(engines["b"], calls.Snapshot())
    state = done(engines["b"], calls.ReadChunk(held.snapshot, 0, held.size)).data
    done(joiner, calls.Consider("b", 2, state))
    done(joiner, calls.Agree())
    for other, giver in ((again, "a"), (joiner, "b")):
        assert torch.equal(loaded(other).codes, loaded(engines[giver]).codes)
        assert loaded(other).codes.any()


def test_an_undone_step_does_not_change_averaged_buffers():
    engine = opened(agreed("codebook", "average"))
    done(engine, calls.Train(0, 2))
    done(engine, calls.Mix(0))
    before = x_of(engine).clone()
    engine.trainer.model.data.x.fill_(float("inf"))
    assert done(engine, calls.Train(1, 2)).undone == 2
    assert torch.equal(x_of(engine), before)


def test_names_and_patterns_select_averaged_buffers():
    def carried(*names):
        made = agreed("codebook", names)
        return carried_buffers(made, Codebook())

    assert carried("codes") == ("codes",)
    assert carried("c*") == ("codes", "constant")
    assert carried("!*") == ()
    assert carried_buffers(agreed("codebook", "average"), Codebook()) == ("codes", "mean", "constant")
    for name, words in (("code", "'code' matches no buffer"), ("seen", "'seen' matches no buffer of finite floating-point")):
        with pytest.raises(ConfigError, match=f"task.buffers: {words}.*its buffers are codes, mean, seen") as caught:
            carried(name)
        assert "\n" not in str(caught.value)


def test_a_mask_of_infinite_numbers_is_never_averaged():
    """A vector that contains infinity is never accepted as a model."""
    model = Codebook()
    model.constant[0] = -torch.inf
    assert carried_buffers(agreed("codebook", "average"), model) == ("codes", "mean")


def test_buffers_more_precise_than_the_vector_are_refused():
    model = Codebook()
    model.codes = model.codes.double()
    with pytest.raises(ConfigError, match=r"task.buffers: codes is float64, which would be rounded to float32"):
        carried_buffers(agreed("codebook", "average"), model)
    assert "codes" in carried_buffers(agreed("codebook", "average"), model.double())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["mix=k_gt"], "k_gt exchanges more than models.*one of .*pet"),
        (["mix=push_sum", "overlay=pull"], "push_sum exchanges more"),
        (['mix.personal=["head.*"]'], "must be local with mix.personal"),
    ],
)
def test_averaged_buffers_are_refused_in_the_manifest_where_impossible(keys, words):
    with pytest.raises(ConfigError, match=f"task.buffers: .*{words}"):
        manifests.check(toml.apply_set(Manifest(), ["task.buffers=average", *keys]))


def test_averaged_buffers_are_refused_with_privacy():
    call = open_request(agreed("codebook", "average"))
    call = structs.replace(call, privacy=structs.replace(call.privacy, noise=1.0))
    refused_as("config", Worker().handle(call), "task.buffers: codes is averaged")


def test_names_of_averaged_buffers_survive_storage():
    chosen = toml.apply_set(Manifest(), ['task.buffers=["codes", "!seen"]'])
    assert chosen.task.buffers == ("codes", "!seen")
    assert toml.convert(toml.parse(toml.to_toml(chosen)), Manifest) == chosen


def test_a_moving_teacher_is_detected_reported_once_stored_and_restored(tmp_path):
    made = agreed("taught")
    engine = opened(made, checkpoint=tmp_path / "c")
    notes = []
    for turn in range(3):
        notes += done(engine, calls.Train(turn, 3)).notes
        done(engine, calls.Mix(turn))
    notes += done(engine, calls.Train(3, 1)).notes
    assert [note for note in notes if note.startswith("frozen parameters change in training: teacher.1.weight, teacher.1.bias;")]
    assert len(notes) == 1
    done(engine, calls.Stop())
    again = opened(made, checkpoint=tmp_path / "c")
    for ours, theirs in zip(module(again).parameters(), module(engine).parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not any(done(again, calls.Train(4, 1)).notes)


def test_an_unchanged_frozen_layer_is_in_no_checkpoint(tmp_path):
    engine = opened(manifest("tests.harness.networks:Pictures", params={"network": "tied"}), checkpoint=tmp_path / "c")
    for turn in range(2):
        done(engine, calls.Train(turn, 2))
        done(engine, calls.Mix(turn))
    done(engine, calls.Stop())
    assert not [name for name in tensor_file.load(tmp_path / "c")[0] if name.startswith("frozen.")]


def transfer(giver):
    held = done(giver, calls.Snapshot())
    return done(giver, calls.ReadChunk(held.snapshot, 0, held.size)).data


def test_a_late_joiner_is_given_the_teacher_of_the_median_peer():
    made = agreed("taught")
    engines = pair(made)
    rounds(engines, count=4)
    joiner = opened(made, 0, "c")
    lie, facts = tensor_file.unpack(transfer(engines["b"]))
    lie["frozen.teacher.1.bias"] += 1e6
    for peer, state in (("a", transfer(engines["a"])), ("b", transfer(engines["b"])), ("l", tensor_file.pack(lie, facts))):
        done(joiner, calls.Consider(peer, 4, state))
    done(joiner, calls.Agree())
    teachers = [module(engines[peer]).teacher[1] for peer in "ab"]
    own = module(joiner).teacher[1]
    assert torch.equal(own.weight, teachers[1].weight)  # two of three members have b's value
    assert torch.equal(own.bias, torch.maximum(*(each.bias for each in teachers)))
    assert not torch.equal(own.weight, opened(made).trainer.model.module.teacher[1].weight)


@pytest.mark.parametrize("name", ["frozen.student.1.bias", "frozen.other", "teacher.1.bias"])
def test_only_frozen_parameters_are_installed(name):
    made = agreed("taught")
    giver, joiner = opened(made), opened(made, 0, "c")
    given, facts = tensor_file.unpack(transfer(giver))
    state = tensor_file.pack({**given, name: torch.zeros(10)}, facts)
    reply = run(joiner, calls.Consider("a", 0, state))
    refused_as("peer", reply, "state_unusable")


def test_non_finite_side_state_is_not_installed():
    side = SideState(Taught(), agreed("taught"))
    side.check_changing({"frozen.teacher.1.bias": torch.zeros(10)})
    for bad in (torch.full((10,), float("nan")), torch.zeros(3), torch.zeros(10).double()):
        with pytest.raises(ValueError, match="other frozen parameters"):
            side.check_changing({"frozen.teacher.1.bias": bad})


def test_a_growing_buffer_is_restored_after_an_undone_step():
    model = Codebook()
    side = SideState(model, agreed("codebook"))
    model.codes = torch.ones(5, 8)
    side.reset_buffers()
    assert torch.equal(model.codes, torch.zeros(2, 8))


@pytest.mark.parametrize("network", ["extra", "counting"])
def test_changing_extra_state_is_reported_once(network):
    """Loading it from a checkpoint would need unpickling."""
    engine, notes = opened(agreed(network)), []
    for turn in range(3):
        done(engine, calls.Mix(turn - 1)) if turn else None
        notes += done(engine, calls.Train(turn, 2)).notes
    assert len(notes) == (network == "counting")
    assert all(note.startswith("get_extra_state: training changes that of Extra; ") for note in notes)


class TestPackedBase:
    """Integers with scales that the layer adds to its state_dict and does not load back."""

    def test_it_trains_and_is_evaluated_exported_and_loaded(self, tmp_path):
        engine = opened(agreed("packed"), checkpoint=tmp_path / "c")
        done(engine, calls.Train(0, 5))
        done(engine, calls.Mix(0))
        said = done(engine, calls.Evaluate())
        done(engine, calls.Save(str(tmp_path / "m")))
        tensors, facts = tensor_file.load(tmp_path / "m")
        assert set(tensors) == {"head.weight", "head.bias"}
        assert facts["holds"] == "trained"
        assert set(tensor_file.load(tmp_path / "best.safetensors")[0]) == set(tensors)
        assert not [name for name in tensor_file.load(tmp_path / "c")[0] if "base" in name]
        again = opened(agreed("packed"), checkpoint=tmp_path / "c")
        assert done(again, calls.Evaluate()).loss == said.loss

    def test_an_initial_file_contains_the_trained_parameters(self, tmp_path):
        engine = opened(agreed("packed"))
        done(engine, calls.Train(0, 5))
        done(engine, calls.Save(str(tmp_path / "m")))
        made = agreed("packed")
        started = opened(structs.replace(made, task=made.task.changed(start=str(tmp_path / "m"))))
        assert torch.equal(x_of(started), x_of(engine))


def test_a_fresh_model_is_hashed_once_per_start(monkeypatch):
    """Hashing a large base takes seconds."""
    from starling.node.engine import fingerprint

    counted = []
    monkeypatch.setattr(fingerprint, "check", lambda *given: counted.append(given))
    engine = opened(agreed("taught"))
    engine.trainer.model.beginning()
    engine.trainer.model.beginning()
    assert len(counted) == 1
    assert Beside("taught").model(torch.Generator()) is not None


class Memory(nn.Module):
    """Counts the samples it has seen, and stores some: more after each batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("bank", torch.zeros(1, 2))
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x):
        self.seen.add_(len(x))
        self.bank = torch.cat([self.bank, x[:1].detach()])
        return self.layer(x)


def test_an_undone_step_reverts_only_its_own_changes_of_buffers():
    """Changes by kept steps stay, also those of the same round."""
    module = Memory()
    kept = SavedBuffers(module, [name for name, _ in module.named_buffers()], ["seen", "mask"])
    for turn in range(3):
        for _ in range(2):
            module(torch.ones(5, 2))
            kept.keep()
        module(torch.full((5, 2), float("nan")))
        kept.reset()
        assert (float(module.seen), module.bank.shape) == (10.0 * (turn + 1), (1 + 2 * (turn + 1), 2))
        assert torch.isfinite(module.bank).all()
        assert kept.mark() == (["seen"] if turn == 0 else [])
    module.mask.zero_()
    assert kept.mark() == ["mask"], "one that was steady so far"
