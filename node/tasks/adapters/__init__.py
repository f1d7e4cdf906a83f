"""Models of other libraries as tasks: `starling.adapters`. The libraries are extras, imported on use, e.g. `starling-swarm[peft]`."""

from starling.node.tasks.adapters.language import causal_lm, lora
from starling.node.tasks.adapters.modules import lightning, optimizer_settings

__all__ = ["causal_lm", "lightning", "lora", "optimizer_settings"]
