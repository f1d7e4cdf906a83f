"""Models of transformers, peft and lightning: only trained parameters are exchanged, and unusable models are refused in one line."""

import itertools
import sys

import numpy as np
import pytest
import torch
from torch import nn

import starling
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import bind, layout
from starling.node.tasks.api import DataError, Generative
from starling.node.tasks.evaluate import evaluate
from tests.harness.tasks import built_in, write_texts

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers


def gpt2(**changed):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'starling-swarm[transformers]'")
    small = {"vocab_size": 256, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2Config(**small | changed)


def adapters_of(make, **config):
    pytest.importorskip("peft", reason="needs peft: pip install 'starling-swarm[peft]'")
    return starling.adapters.lora(make, **config)


@pytest.mark.slow
def test_only_lora_adapters_are_exchanged(tmp_path):
    """rank · (inputs + outputs) numbers per matrix, 4 bytes each, of a model many times as large."""
    make = adapters_of(gpt2(), r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    task = starling.adapters.causal_lm(make, text=write_texts(tmp_path), context=16)
    model = task.model(generator(1, "model"))
    x, _ = bind(model, layout(model))
    assert x.nbytes == 4 * 2 * (16 + 3 * 16)
    assert x.nbytes < sum(each.nbytes for each in model.parameters()) / 10
    assert all("lora_" in name for name in layout(model).names)
    again = task.model(generator(1, "model"))
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.slow
def test_lora_takes_any_module_and_leaves_it_to_starling_task():
    make = adapters_of(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), r=1, target_modules=["2"])
    task = starling.task(model=make, train=(np.ones((20, 4)), np.arange(20) % 2))
    model = task.model(generator(1, "model"))
    assert layout(model).dim == 8 + 2
    assert task.loss(model, task.data(built_in(), "cpu").batch(4, generator(1, "batch"))).requires_grad


def test_a_model_s_score_is_bits_of_every_token(tmp_path):
    """As the model itself computes its loss from labels."""
    task = starling.adapters.causal_lm(gpt2(), text=write_texts(tmp_path), context=16)
    model, data = task.model(generator(1, "model")).eval(), task.data(built_in(), "cpu")
    batch = data.batch(4, generator(1, "batch"))
    with torch.no_grad():
        bits, nats, tokens = task.score(model, batch)
        theirs = model(input_ids=batch, labels=batch).loss
    assert tokens == 4 * 16
    assert nats / tokens == pytest.approx(float(theirs), rel=1e-4)
    assert bits == pytest.approx(nats / np.log(2))
    assert task.metric == "bits_per_byte"
    assert task.decode(task.encode("né")) == "né"


def test_a_larger_vocabulary_writes_bytes_only(tmp_path):
    task = starling.adapters.causal_lm(gpt2(vocab_size=300), text=write_texts(tmp_path), context=16)
    assert isinstance(task, Generative)
    assert task.context == 16
    assert task.logits(task.model(generator(1, "model")), torch.tensor([[1, 2, 3]])).shape == (1, 3, 256)


def test_text_is_read_by_a_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'starling-swarm[transformers]'")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "sun": 1, "moon": 2}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "sky.txt").write_text("sun moon sky " * 100)
    task = starling.adapters.causal_lm(gpt2(vocab_size=3), text=tmp_path / "sky.txt", context=5, tokenizer=tmp_path / "tokenizer.json")
    data = task.data(built_in(), "cpu")
    for window in data.batch(8, generator(1, "batch")).tolist():
        assert all((after - before) % 3 == 1 for before, after in itertools.pairwise(window))
    assert next(data.held_out(1)).shape == (1, 6)
    assert task.metric == "bits_per_token"
    assert task.decode(task.encode("sun moon")) == "sun moon"
    assert task.logits(task.model(generator(1, "model")), torch.tensor([[1, 2]])).shape == (1, 2, 3)
    (tmp_path / "bad.txt").write_bytes(b"sun \xff moon")
    with pytest.raises(DataError, match=r"bad.txt: is not UTF-8, byte 4"):
        starling.adapters.causal_lm(gpt2(n_positions=128), text=tmp_path / "bad.txt", tokenizer=tmp_path / "tokenizer.json").data(
            built_in(), "cpu"
        )


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (lambda: gpt2(vocab_size=100), {}, "model: vocab_size must be >= 256, the tokens of the text, got 100"),
        (gpt2, {"context": 64}, "context: must be <= max_position_embeddings = 32 of the model, got 64"),
        (gpt2, {"tokenizer": "gone.json"}, "tokenizer: gone.json cannot be read"),
        (lambda: "nowhere", {}, "model: nowhere is no folder of a transformers model"),
        (lambda: nn.Linear(1, 1), {}, "model: give a config, a folder, or a function"),
    ],
)
def test_an_impossible_language_model_is_refused(model, more, said, tmp_path):
    gpt2()
    with pytest.raises(ConfigError, match=said):
        starling.adapters.causal_lm(model(), text=tmp_path, **more)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"needs the package peft; `pip install 'starling-swarm\[peft\]'`"):
        starling.adapters.lora(lambda: nn.Linear(1, 1), r=1)


class Stepped(nn.Module):
    """The parts of a LightningModule that an adapter uses."""

    automatic_optimization = True

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch, _index):
        loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss}

    def validation_step(self, batch, _index):
        error = (self.layer(batch[0]) - batch[1]).abs().mean()
        self.log_dict({"val_loss": error**2, "mae": error})

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, betas=(0.8, 0.99), weight_decay=0.1)


DATA = (torch.ones(20, 2), torch.zeros(20, 1))


def test_a_lightning_module_s_steps_are_loss_and_score_without_a_trainer():
    task = starling.adapters.lightning(Stepped, DATA, metric="mae")
    model, data = task.model(generator(1, "model")), task.data(built_in(), "cpu")
    assert task.loss(model, data.batch(4, generator(1, "batch"))).requires_grad
    *_, result = evaluate(task, model, data, 256)
    mae = float(model.layer(torch.ones(1, 2)).detach().abs())
    assert result.value == pytest.approx(mae)
    assert result.loss == pytest.approx(mae**2)
    assert "log" not in vars(model)
    with pytest.raises(ConfigError, match="metric: validation_step does not log 'auc', it logs val_loss, mae"):
        starling.adapters.lightning(Stepped, DATA, metric="auc").score(model, next(data.held_out(2)))


def test_a_module_with_manual_optimisation_is_refused():
    by_itself = type("Manual", (Stepped,), {"automatic_optimization": False})
    with pytest.raises(ConfigError, match="manual optimisation"):
        starling.adapters.lightning(by_itself, DATA)
    with pytest.raises(ConfigError, match="Linear has no training_step"):
        starling.adapters.lightning(lambda: nn.Linear(1, 1), DATA)


def test_the_optimiser_of_a_module_becomes_keys_of_a_manifest():
    assert starling.adapters.optimizer_settings(Stepped()) == {
        "optimizer": "adamw",
        "optimizer.schedule": "constant",
        "optimizer.lr": 0.01,
        "optimizer.weight_decay": 0.1,
        "optimizer.beta_1": 0.8,
        "optimizer.beta_2": 0.99,
        "optimizer.eps": 1e-8,
    }


def test_no_decay_of_biases_becomes_a_key():
    module = Stepped()
    matrices, biases = ([each for each in module.parameters() if (each.ndim > 1) == many] for many in (True, False))
    assert matrices
    assert biases
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.2}]
    module.configure_optimizers = lambda: torch.optim.AdamW(groups, lr=0.1)
    said = starling.adapters.optimizer_settings(module)
    assert (said["optimizer.decay"], said["optimizer.weight_decay"], said["optimizer.lr"]) == ("matrices", 0.2, 0.1)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad = True of adamw has no key"),
        (torch.optim.LBFGS, "LBFGS is none of"),
        (lambda p: {"optimizer": torch.optim.SGD(p), "lr_scheduler": None}, "returns a dict"),
        (lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 1.0}], lr=0.1), "groups of parameters differ"),
        (
            lambda p: torch.optim.SGD([{"params": p[:1], "weight_decay": 0.0}, {"params": p[1:], "weight_decay": 0.1}], lr=0.1),
            "no weight_decay for biases and norms",
        ),
    ],
)
def test_an_optimiser_that_a_manifest_cannot_express_is_refused(made, said):
    module = Stepped()
    module.configure_optimizers = lambda: made(list(module.parameters()))
    with pytest.raises(ConfigError, match=said):
        starling.adapters.optimizer_settings(module)


def test_the_router_loss_is_trained_if_configured_and_excluded_from_the_score(tmp_path):
    """The model itself adds it to the loss of its labels; without it all tokens may be routed to one expert."""
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MixtralConfig(
        vocab_size=256, num_key_value_heads=2, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.5, **small
    )
    task = starling.adapters.causal_lm(config, text=write_texts(tmp_path), context=16)
    model, data = task.model(generator(1, "model")).eval(), task.data(built_in(), "cpu")
    batch = data.batch(4, generator(1, "batch"))
    with torch.no_grad():
        output, loss = model(input_ids=batch[:, :-1]), task.loss(model, batch)
        _, nats, tokens = task.score(model, batch)
    assert float(loss) == pytest.approx(nats / tokens + 0.5 * float(output.aux_loss), rel=1e-5)


def test_a_model_that_sees_the_token_to_predict_is_refused(tmp_path):
    """An encoder would learn to copy, and score perfectly."""
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for decoder in (False, True):
        config = transformers.BertConfig(is_decoder=decoder, **small)
        task = starling.adapters.causal_lm(config, text=write_texts(tmp_path), context=16)
        if decoder:
            assert task.model(generator(1, "model")).training
        else:
            with pytest.raises(ConfigError, match=r"attention is not causal.*is_decoder=True"):
                task.model(generator(1, "model"))


def test_a_made_model_with_too_few_tokens_is_refused_like_its_config(tmp_path):
    make = adapters_of(gpt2(vocab_size=100), r=1, target_modules=["c_attn"], fan_in_fan_out=True)
    task = starling.adapters.causal_lm(make, text=write_texts(tmp_path), context=16)
    with pytest.raises(ConfigError, match="vocab_size must be >= 256, the tokens of the text, got 100"):
        task.model(generator(1, "model"))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"init_lora_weights": "eva"}, "init_lora_weights = 'eva' needs a pass over data"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4' changes the base"),
        ({"init_lora_weights": "olora"}, "init_lora_weights = 'olora' changes the base"),
        ({"inference_mode": True}, "inference_mode = True freezes the adapters"),
        ({"monteclora_config": {}}, "monteclora_config has a loss of its own"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*eva_config:UserWarning")
def test_peft_settings_that_a_node_would_change_are_refused(config, said):
    peft = pytest.importorskip("peft")
    if not config.keys() <= {*peft.LoraConfig.__dataclass_fields__}:
        pytest.skip("a later peft has it")
    with pytest.raises(ConfigError, match=said):
        adapters_of(lambda: nn.Linear(1, 1), r=1, target_modules=["c_attn"], **config)


@pytest.mark.parametrize("named", [{"target_modules": ["0", "two"]}, {"target_modules": ["0"], "modules_to_save": ["two"]}])
def test_a_module_name_that_matches_nothing_is_refused(named):
    """A misspelt name would silently leave that layer untrained."""
    make = adapters_of(lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), r=1, **named)
    with pytest.raises(ConfigError, match="no module is named 'two'"):
        make()


@pytest.mark.slow
def test_modules_to_save_are_trained_and_exchanged_instead_of_the_originals(tmp_path):
    base = gpt2(tie_word_embeddings=False)
    make = adapters_of(base, r=1, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["lm_head", "ln_f"])
    task = starling.adapters.causal_lm(make, text=write_texts(tmp_path), context=16)
    model, data = task.model(generator(1, "model")), task.data(built_in(), "cpu")
    saved = [name for name in layout(model).names if "lora_" not in name]
    assert sorted(name.split("modules_to_save")[0].split(".")[-2] for name in saved) == ["lm_head", "ln_f", "ln_f"]
    task.loss(model, data.batch(4, generator(1, "batch"))).backward()
    trained = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(each is not None for each in trained.values())
    assert not any("original_module" in name for name in trained)


def test_a_batch_in_parts_has_the_gradient_of_the_whole(tmp_path):
    """Every sample has equally many tokens, so the mean over tokens is the mean over samples."""
    task = starling.adapters.causal_lm(gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), text=write_texts(tmp_path), context=16)
    model, data = task.model(generator(1, "model")), task.data(built_in(), "cpu")
    batch = data.batch(6, generator(1, "batch"))
    whole = torch.autograd.grad(task.loss(model, batch), list(model.parameters()))
    parts = [torch.autograd.grad(task.loss(model, part) * len(part) / 6, list(model.parameters())) for part in batch.split(4)]
    for one, *others in zip(whole, *parts, strict=True):
        assert torch.allclose(one, sum(others), atol=1e-6)
