"""Adapters of rank 4 on a small GPT-2 that reads bytes: only they are trained and exchanged. The base follows from the manifest's seed."""

import os
from pathlib import Path

from transformers import GPT2Config

import starling


def books() -> starling.Task:
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    adapted = starling.adapters.lora(config, r=4, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["lm_head"])
    return starling.adapters.causal_lm(adapted, text=str(Path(os.environ["STARLING_DATA"]) / "authors"), context=64)
