"""Texts by author, and a small random Llama that LoRA adapts to them: each PART is an author, and all four are tested.

An author has eight words, each of which is usually followed by one of two others.
"""

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from tests.integrations.scripts.common import PARTS

WORDS, LENGTH = 8, 16
USUAL = (0.6, 0.3)  # chances of a word's two followers
SWARM = {"rounds": 100, "local_steps": 5, "metric": "loss"}
BATCH, RATE = 8, 1e-2


def base():
    """Return the base model, equal in all processes; its values are large enough for adapters to make sharp predictions."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1 + PARTS * WORDS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LENGTH,
            initializer_range=0.15,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )
    torch.set_rng_state(state)
    return made


def lora():
    return LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")


def adapted():
    return get_peft_model(base(), lora())


def rows(author, count, seed):
    """Return (count, LENGTH) words of an author."""
    chance = torch.Generator().manual_seed(100 * seed + author)
    grammar = torch.Generator().manual_seed(author)
    followers = torch.stack([torch.randperm(WORDS, generator=grammar)[:2] for _ in range(WORDS)])
    words = torch.randint(WORDS, (count, 1), generator=chance)
    for _ in range(LENGTH - 1):
        draw, other = torch.rand(count, generator=chance), torch.randint(WORDS, (count,), generator=chance)
        usual = followers[words[:, -1]]
        following = torch.where(draw < USUAL[0], usual[:, 0], torch.where(draw < sum(USUAL), usual[:, 1], other))
        words = torch.cat([words, following[:, None]], 1)
    return 1 + author * WORDS + words


def read(part):
    """Return rows of an author, or of all for None, and of the test split."""
    authors = range(PARTS) if part is None else (part,)
    return torch.cat([rows(each, 400, 1) for each in authors]), torch.cat([rows(each, 50, 2) for each in range(PARTS)])


@torch.no_grad()
def loss(model, words):
    """Return the loss in nats per word."""
    training = model.training
    model.eval()
    logits = model(input_ids=words).logits[:, :-1].float()
    model.train(training)
    return float(cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()))


class Paused(TrainerCallback):
    """Lets a script's steps take as long as requested."""

    def __init__(self, given):
        self._given = given

    def on_step_begin(self, *given, **keys):
        self._given.pause()


def arguments(given):
    """Return the arguments of a Trainer."""
    return {
        "output_dir": str(given.folder) + ".out.d",
        "per_device_train_batch_size": BATCH,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 5,
        "disable_tqdm": True,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "dataloader_pin_memory": False,
        "max_steps": given.steps,
        "seed": given.seed,
        "bf16": False,
    }
