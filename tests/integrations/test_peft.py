"""Only the adapters of peft are exchanged, between members with the Trainer of transformers and with TRL's."""

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
pytest.importorskip("transformers", reason="needs transformers: pip install 'starling-swarm[transformers]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'starling-swarm[accelerate]'")
peft = pytest.importorskip("peft", reason="needs peft: pip install 'starling-swarm[peft]'")

from starling.integrations.transformers import SwarmCallback  # noqa: E402
from tests.integrations.gpt import Recorder, flat, gpt, trainer  # noqa: E402
from tests.integrations.nodes import Node, beside  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft asks transformers
]


@pytest.fixture(autouse=True)
def _beside(monkeypatch):
    beside(monkeypatch)


def lora():
    return peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)


def adapted():
    return peft.get_peft_model(gpt(), lora())


def test_a_trainer_exchanges_adapters_only(tmp_path):
    model, before, after = adapted(), Recorder(), Recorder()
    base = {name: each.clone() for name, each in model.named_parameters() if not each.requires_grad}
    with Node(tmp_path, model) as node:
        used = trainer(tmp_path, model, before, SwarmCallback(tmp_path), after)
        used.train()
    assert node.layout.dim == 2 * (16 + 3 * 16)
    assert all("lora_" in name and "default" not in name for name in node.layout.names)
    for number in range(3):
        step = 2 * number + 2
        assert torch.equal(node.before[number], before.models[step])
        assert torch.equal(after.models[step], 0.5 * before.models[step])
    assert all(torch.equal(each, base[name]) for name, each in model.named_parameters() if name in base)


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # trl sets an option that transformers deprecates
def test_a_trainer_of_trl_is_a_member_of_the_same_swarm(tmp_path):
    """It creates the adapters itself, with other initial values, and replaces these by the swarm's."""
    trl = pytest.importorskip("trl", reason="needs trl: pip install 'starling-swarm[trl]'")
    datasets = pytest.importorskip("datasets")
    pyarrow = pytest.importorskip("pyarrow")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: at for at, word in enumerate(["<eos>", *"abcdefgh"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<eos>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<eos>")
    texts = pyarrow.table({"input_ids": [[1, 2, 3, 4], [5, 6, 7, 8], [1, 3, 5, 7], [2, 4, 6, 8]] * 4})
    texts = datasets.Dataset(texts, fingerprint="made here")
    config = trl.SFTConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=100,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        bf16=False,
        dataloader_pin_memory=False,
        max_length=8,
        disable_tqdm=True,
        logging_steps=1,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    before, after = Recorder(), Recorder()
    with Node(tmp_path, adapted()) as node:
        used = trl.SFTTrainer(
            model=gpt(),
            args=config,
            train_dataset=texts,
            processing_class=tokenizer,
            peft_config=lora(),
            callbacks=[before, SwarmCallback(tmp_path), after],
        )
        used.train()
    assert used.state.global_step == 6
    assert len(node.after) == 3
    for number in range(3):
        step = 2 * number + 2
        assert torch.equal(node.before[number], before.models[step])
        assert torch.equal(after.models[step], 0.5 * before.models[step])
    assert torch.equal(flat(used.model), node.after[-1])
