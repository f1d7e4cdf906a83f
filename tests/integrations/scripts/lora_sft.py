"""The same with TRL's SFTTrainer, which creates the adapters: on a `whole` base, or on one `quantised` to four bits (QLoRA)."""

import pyarrow as pa
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import BitsAndBytesConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from starling.integrations.transformers import SwarmCallback
from tests.integrations.scripts import language
from tests.integrations.scripts.common import PARTS, Given


def tokenizer():
    words = {"<eos>": 0} | {f"word{at}": at for at in range(1, 1 + PARTS * language.WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<eos>")


def quantised(folder):
    """Return the base in four bits, loaded from a folder."""
    language.base().save_pretrained(folder)
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    return LlamaForCausalLM.from_pretrained(folder, quantization_config=four_bits, device_map={"": "cpu"})


def main():
    given = Given(**language.SWARM, set={"task.any_base": True})
    own, tested = language.read(given.part)
    model = quantised(f"{given.folder}.base") if given.other == ["quantised"] else language.base()
    config = SFTConfig(**language.arguments(given), max_length=language.LENGTH, dataset_kwargs={"skip_prepare_dataset": True})
    trainer = SFTTrainer(
        model=model,
        args=config,
        train_dataset=Dataset(pa.table({"input_ids": own.tolist()}), fingerprint="made here"),
        processing_class=tokenizer(),
        peft_config=language.lora(),
        callbacks=[language.Paused(given), *given.callbacks(SwarmCallback)],
    )
    trainer.train()
    given.say(language.loss(trainer.model, tested))


if __name__ == "__main__":
    main()
