"""Built-in quantizers by their code on the wire."""

import torch

from starling.gossip.compress.catalogue import QUANTIZERS, by_code, quantizer

BY_CODE = by_code(
    {"float32": quantizer("identity", torch.float32), "float64": quantizer("identity", torch.float64)}
    | {name: quantizer(name, torch.float32) for name in QUANTIZERS.built_in if name != "identity"}
)
