"""A trained model in the formats of other libraries gives equal outputs when read back there."""

import importlib

import numpy as np
import pytest
import torch

import starling
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node import run_directory
from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.engine import model_file, offline
from starling.node.engine.worker import Worker
from starling.node.identity import Identity
from starling.node.node_handle import Attached
from starling.node.rpc import calls
from starling.node.status.card import card
from starling.node.status.snapshot import VERSION, StatusSnapshot
from tests.harness.engines import done

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft asks transformers
]
GPT = """
import starling
from transformers import GPT2Config

def config():
    return GPT2Config(
        vocab_size=256, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )

def whole() -> starling.Task:
    return starling.adapters.causal_lm(config(), text="{text}", context=16)

def adapted() -> starling.Task:
    made = starling.adapters.lora(config(), r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return starling.adapters.causal_lm(made, text="{text}", context=16)
"""
TOKENS = torch.arange(32).reshape(2, 16)


def trained(folder, kind):
    """The run directory of a node that has trained, saved and ended; and its model, made by the task."""
    keys = [f"task={kind}", "partition=iid", "pace.local_steps=3", "task.batch_size=4", "optimizer.lr=0.5"]
    place, _ = run_directory.create(folder / "n", toml.apply_set(Manifest(), keys), NodeConfig(device="cpu", trust=True, shard=0))
    agreed, me, engine = place.read_manifest(), Identity.load_or_create(place.key).peer_id, Worker()
    shard = manifests.shard_of(agreed, 0, me)
    done(engine, calls.Open(agreed, "", shard, "cpu", 1, str(place.checkpoint), me))
    done(engine, calls.Train(0, 3))
    done(engine, calls.Mix(0))
    done(engine, calls.Save(""))
    trainer = engine.trainer
    model = trainer.model.task.model(generator(agreed.seed, "model"))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    model_file.fill(model, trainer.exported())
    assert any(not torch.equal(before[name], each) for name, each in model.state_dict().items())
    return place, model.eval()


def converted(place, form, target):
    offline.export(place.path, place.path.parent / "m.safetensors")
    offline.convert(place.path, place.path.parent / "m.safetensors", form, target)
    return target


@pytest.fixture
def gpt(tmp_path, monkeypatch):
    for package in ("transformers", "peft"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'starling-swarm[{package}]'")
    (tmp_path / "text.txt").write_text("what is trained here is a very small model of very little text " * 60)
    (tmp_path / "my_forms.py").write_text(GPT.replace("{text}", str(tmp_path / "text.txt")))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("my_forms")
    __import__("sys").modules.pop("my_forms")


def test_transformers_reads_a_model_back(gpt, tmp_path):
    place, model = trained(tmp_path, "my_forms:whole")
    folder = converted(place, "hf", tmp_path / "hf")
    read = importlib.import_module("transformers").AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        assert torch.equal(read(input_ids=TOKENS).logits, model(input_ids=TOKENS).logits)
    assert not list(folder.glob("*.bin"))
    task = starling.adapters.causal_lm(folder, text=tmp_path / "text.txt", context=16)
    assert torch.equal(next(task.model(generator(9, "model")).parameters()), next(model.parameters()))


def test_peft_reads_adapters_back_onto_the_same_base(gpt, tmp_path):
    place, model = trained(tmp_path, "my_forms:adapted")
    folder = converted(place, "peft", tmp_path / "peft")
    assert {path.name for path in folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) < 2000  # 4 · 2 · (16 + 48) bytes, and the names
    agreed = place.read_manifest()
    fresh = gpt.adapted().model(generator(agreed.seed, "model"))
    base = fresh.unload()
    read = importlib.import_module("peft").PeftModel.from_pretrained(base, folder).eval()
    with torch.no_grad():
        expected = model(input_ids=TOKENS).logits
        assert torch.equal(read(input_ids=TOKENS).logits, expected)
        with read.disable_adapter():
            assert not torch.equal(read(input_ids=TOKENS).logits, expected)
    with pytest.raises(ConfigError, match="hf does not fit a model with adapters; try `--format peft`"):
        converted(place, "hf", tmp_path / "hf")


def test_torch_reads_a_state_dict_without_unpickling_code(tmp_path):
    place, model = trained(tmp_path, "digits")
    read = torch.load(converted(place, "torch", tmp_path / "m.pt"), weights_only=True)
    assert read.keys() == model.state_dict().keys()
    assert all(torch.equal(each, read[name]) for name, each in model.state_dict().items())


def test_onnx_computes_what_the_model_computes_for_any_number_of_samples(tmp_path, recwarn):
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'starling-swarm[onnx]'")
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'starling-swarm[onnx]'")
    place, model = trained(tmp_path, "digits")
    file = converted(place, "onnx", tmp_path / "m.onnx")
    x = np.random.Generator(np.random.PCG64(1)).random((5, 64), dtype=np.float32)
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(onnx.load(file))
    (given,) = evaluator.input_names
    (output,) = evaluator.run(None, {given: x})
    with torch.no_grad():
        np.testing.assert_allclose(output, model(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("form", "said"), [("hf", "needs a transformers model"), ("peft", "needs a model with adapters")])
def test_an_unsuitable_format_gives_one_line(form, said, tmp_path):
    place, _ = trained(tmp_path, "digits")
    with pytest.raises(ConfigError, match=f"--format: {form} {said}, this task's is a Sequential; try `--format safetensors`"):
        converted(place, form, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.acceptance
def test_the_command_writes_a_format_and_a_card(tmp_path, capsys, monkeypatch):
    place, _ = trained(tmp_path, "digits")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "m.pt", "--format", "torch", "--card", "--dir", str(place.path)]) == 0
    assert torch.load("m.pt", weights_only=True)
    page = (tmp_path / "m.md").read_text()
    assert f"| swarm | `{manifests.swarm_id(place.read_manifest())}` |" in page
    assert "| task | `digits` |" in page
    assert "never left its machine" in page
    assert main(["export", "m.pt", "--format", "torch", "--dir", str(place.path)]) == 2
    assert "m.pt exists; name another file, or replace it with `--force`" in capsys.readouterr().err
    assert main(["export", "m.bin", "--format", "torch", "--dir", str(place.path)]) == 2
    assert "`starling export m.pt --format torch`" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--format: hf needs a transformers model"):
        Attached(place.path).export("folder", format="hf")


def test_a_card_has_one_nodes_figures_and_no_table_of_members():
    status = StatusSnapshot(
        version=VERSION,
        peer="p",
        swarm="s",
        name="n",
        time_s=0.0,
        uptime_s=1.0,
        state="finished",
        task="digits",
        metric="accuracy",
        round=7,
        rounds=9,
        local_steps=1400,
        members=4,
        value=0.9731,
        value_round=6,
        parameters=4810,
    )
    page = card("a |\n# b <i>", swarm="s1", task="my:T", form="peft", status=status)
    for row in ("| rounds | 7 of 9 |", "| members at the end | 4 |", "| accuracy | 0.9731, on this node's held-out data, in round 6 |"):
        assert row in page
    assert page.startswith("---\nlibrary_name: peft\n")
    assert "\n# a \\| # b &lt;i>\n" in page
