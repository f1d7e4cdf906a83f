"""LoRA under the Trainer of transformers as a member of a swarm: `python trainer.py FOLDER PART [INVITE_FILE]`.

PART is a package of Python's standard library, 0 to 3, whose text is learned from here. Without an invite it creates the swarm.
"""

import json
import math
import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import starling
from starling.integrations.transformers import SwarmCallback

PACKAGES = ("encodings", "pydoc_data", "email", "unittest")
CONTEXT, HELD_OUT = 64, 4096  # bytes
ROUNDS, STEPS = 40, 10


def text(package: str) -> torch.Tensor:
    """Return the bytes of a package, (n,)."""
    files = sorted((Path(os.__file__).parent / package).glob("*.py"))
    return torch.tensor(list(b"".join(each.read_bytes() for each in files)))


def adapted() -> torch.nn.Module:
    """Return a GPT-2 of random values that are the same for all, with adapters of rank 8 and a head that are trained."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
    lora = LoraConfig(r=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, modules_to_save=["lm_head"])
    return get_peft_model(base, lora)


class Joining:
    """Creates the swarm, or joins it, once a Trainer has a model and an optimizer.

    Args:
        folder: of the node.
        invite: a file; None: create the swarm.
    """

    def __init__(self, folder: str, invite: Path | None) -> None:
        self._folder, self._invite = folder, invite

    def __call__(self, **given: object) -> starling.Swarm:
        """Return the Swarm; `given`: model and optimizer."""
        local = {"listen": "/ip4/127.0.0.1/tcp/0", "config": {"lan": False, "linger_s": 2}}
        if self._invite is not None:
            return starling.Swarm(self._folder, self._invite.read_text(), **given, **local)
        swarm = starling.Swarm.create(self._folder, rounds=ROUNDS, local_steps=STEPS, quorum=len(PACKAGES), **given, **local)
        waiting = Path(f"{self._folder}.invite.new")
        waiting.write_text(swarm.invite())
        waiting.rename(f"{self._folder}.invite")
        return swarm


@torch.no_grad()
def bits(model: torch.nn.Module, rows: torch.Tensor) -> float:
    """Return bits a byte of rows (n, CONTEXT), which the model predicts."""
    model.eval()
    losses = [float(model(input_ids=row, labels=row).loss) for row in rows.split(16)]
    return sum(losses) / len(losses) / math.log(2)


def main(folder: str, part: int, invite: Path | None) -> None:
    """Train in the swarm, then print bits a byte of what is held out, of all four packages."""
    torch.set_num_threads(1)
    texts = [text(package) for package in PACKAGES]
    held_out = torch.cat([each[-HELD_OUT:].view(-1, CONTEXT) for each in texts])
    own = texts[part][:-HELD_OUT]
    rows = own[: len(own) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    arguments = TrainingArguments(
        f"{folder}.out",
        max_steps=ROUNDS * STEPS,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    callbacks: list[TrainerCallback] = [SwarmCallback(Joining(folder, invite))]
    trainer = Trainer(adapted(), arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows], callbacks=callbacks)
    trainer.train()
    print(json.dumps({"bits": bits(trainer.model, held_out)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
