"""Files and packed bases of real libraries: models saved by transformers are initial models, and adapters train on bitsandbytes bases."""

import importlib
import sys

import pytest
import torch
from msgspec import structs

from starling.gossip.rng import generator
from starling.node.config import toml
from starling.node.config.schema import Manifest
from starling.node.engine import fingerprint, formats, model_file, tensor_file
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.tasks.api import Source
from starling.node.tasks.evaluate import Result, evaluate
from tests.harness.engines import done, open_request, x_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft asks transformers
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TASKS = """
import torch
from torch import nn
import starling
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

TEXT = "{text}"

def gpt():
    return AutoModelForCausalLM.from_config(GPT2Config(
        vocab_size=256, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    ))

def whole() -> starling.Task:
    return starling.adapters.causal_lm(gpt, text=TEXT, context=16)

def packed(layer):
    import bitsandbytes as bnb
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=64)
    model = AutoModelForCausalLM.from_config(config)
    attention = model.model.layers[0].self_attn
    for name in ("q_proj", "v_proj"):
        setattr(attention, name, layer(bnb, getattr(attention, name)))
    return model.requires_grad_(False).to("cpu")

def four_bits(bnb, old):
    new = bnb.nn.Linear4bit(old.in_features, old.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4")
    new.weight = bnb.nn.Params4bit(old.weight.data, requires_grad=False, quant_type="nf4")
    return new

def eight_bits(bnb, old):
    new = bnb.nn.Linear8bitLt(old.in_features, old.out_features, bias=False, has_fp16_weights=False)
    new.weight = bnb.nn.Int8Params(old.weight.data, requires_grad=False, has_fp16_weights=False)
    return new

def adapted(layer):
    made = starling.adapters.lora(lambda: packed(layer), r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return starling.adapters.causal_lm(made, text=TEXT, context=16)

def nf4() -> starling.Task:
    return adapted(four_bits)

def int8() -> starling.Task:
    return adapted(eight_bits)
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    for package in ("transformers", "peft"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'starling-swarm[{package}]'")
    (tmp_path / "text.txt").write_text("what is trained here is a very small model of very little text " * 60)
    (tmp_path / "my_libraries.py").write_text(TASKS.replace("{text}", str(tmp_path / "text.txt")))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("my_libraries")
    sys.modules.pop("my_libraries")


def manifest(kind, **task):
    keys = [f"task=my_libraries:{kind}", "partition=iid", "pace.local_steps=3", "task.batch_size=4", "optimizer.lr=0.5"]
    made = toml.apply_set(Manifest(), keys)
    return structs.replace(made, task=made.task.changed(**task))


def opened(agreed, folder, checkpoint=""):
    engine = Worker(clock=lambda: 0.0)
    done(engine, structs.replace(open_request(agreed, checkpoint=checkpoint), code=str(folder)))
    return engine


@pytest.mark.parametrize("part", ["whole", "body", "wrapped"])
def test_a_model_saved_by_transformers_is_a_valid_initial_model(tasks, tmp_path, part):
    """The whole model without its tied head; its body alone, without the prefix; or all inside another module."""
    other = tasks.gpt()
    with torch.no_grad():
        other.transformer.wte.weight += 0.5
    if part == "wrapped":
        file = tmp_path / "wrapped.safetensors"
        importlib.import_module("safetensors.torch").save_model(torch.nn.ModuleDict({"module": other}), file)
    else:
        (other if part == "whole" else other.transformer).save_pretrained(tmp_path / "hf")
        file = tmp_path / "hf" / "model.safetensors"
    engine = opened(manifest("whole", start=str(file)), tmp_path)
    begun = engine.trainer.model.module
    for name, each in begun.named_parameters():
        assert torch.equal(each, other.get_parameter(name))
    assert begun.lm_head.weight is begun.transformer.wte.weight


@pytest.mark.parametrize("bits", ["nf4", "int8"])
def test_adapters_on_a_packed_base_train_evaluate_export_load_and_generate(tasks, tmp_path, bits):
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    agreed = manifest(bits)
    engine = opened(agreed, tmp_path, tmp_path / "c")
    before = x_of(engine).clone()
    done(engine, calls.Train(0, 3))
    done(engine, calls.Mix(0))
    assert not torch.equal(x_of(engine), before)
    said = done(engine, calls.Evaluate())
    done(engine, calls.Save(str(tmp_path / "m")))
    tensors, facts = tensor_file.load(tmp_path / "m")
    assert tensors
    assert all("lora_" in name for name in tensors)
    assert facts["holds"] == "trained"
    assert sum(each.nbytes for name, each in tensor_file.load(tmp_path / "c")[0].items() if name.startswith("buffer.")) < 10_000
    task = getattr(tasks, bits)()
    fresh = task.model(generator(agreed.seed, "model"))
    model_file.fill(fresh, tensors)
    data = task.data(Source(None, agreed.partition, 0, agreed.seed), "cpu")
    *_, result = evaluate(task, fresh, data, 256)
    assert isinstance(result, Result)
    assert result.loss == pytest.approx(said.loss, rel=1e-5)
    for form, target in (("peft", tmp_path / "peft"), ("torch", tmp_path / "m.pt")):
        formats.write(form, fresh, task, lambda: data, target)
    read = torch.load(tmp_path / "m.pt", weights_only=True)
    assert read.keys() == tensors.keys()
    folder = importlib.import_module("safetensors.torch").load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert {name.replace(".weight", ".default.weight") for name in folder} == tensors.keys()
    again = opened(agreed, tmp_path, tmp_path / "c")
    assert done(again, calls.Evaluate()).loss == pytest.approx(said.loss, rel=1e-5)


def test_another_packed_base_has_another_digest(tasks):
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    one, same, other = (tasks.nf4().model(generator(seed, "model")) for seed in (1, 1, 2))
    assert fingerprint.base(one) == fingerprint.base(same) != fingerprint.base(other)
