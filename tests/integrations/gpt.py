"""A small language model of transformers, training rows and a Trainer. The caller must check that the library is installed."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


def gpt(seed=0):
    """Return a GPT without dropout, so that equal rows give equal bits."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    return GPT2LMHeadModel(config)


def rows(count=14):
    """Return `count` rows of 8 tokens with differing numbers of labels."""
    chance = torch.Generator().manual_seed(0)
    made = []
    for at in range(count):
        ids = torch.randint(1, 32, (8,), generator=chance)
        labels = ids.clone()
        labels[: at % 6] = -100
        made.append({"input_ids": ids, "labels": labels})
    return made


def arguments(folder, **changed):
    return TrainingArguments(
        **{
            "output_dir": str(folder / "out"),
            "per_device_train_batch_size": 2,
            "use_cpu": True,
            "report_to": "none",
            "save_strategy": "no",
            "logging_steps": 1,
            "disable_tqdm": True,
            "learning_rate": 1e-2,
            "seed": 1,
            "lr_scheduler_type": "constant",
            "dataloader_pin_memory": False,
            "max_steps": 6,
        }
        | changed
    )


def trainer(folder, model, *callbacks, data=None, **changed):
    return Trainer(model, arguments(folder, **changed), train_dataset=data or rows(), eval_dataset=rows(4), callbacks=[*callbacks])


def flat(model):
    """Return a copy of a model's trained parameters (d,)."""
    trained = [each for each in model.parameters() if each.requires_grad]
    return torch.cat([each.detach().reshape(-1).clone() for each in trained])


class Recorder(TrainerCallback):
    """Records the parameters after each step, by step number."""

    def __init__(self):
        self.models = {}

    def on_step_end(self, args, state, control, **given):
        self.models[state.global_step] = flat(given["model"])
