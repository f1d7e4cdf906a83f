"""Quantizers: k values to bytes and back. What decode returns is the same, bit for bit, on every machine.

`floats` sends values one by one. All others are `buckets` of values that share a step, with codes from a `grid`.

`omega` bounds the relative error: E‖Q(x) − x‖² <= omega·‖x‖², over the quantizer's own chance. Below 1 it is a contraction with
δ = 1 − omega and may be used in a difference or feedback loop. At 1 or above, as for two bits rounded by chance, it is only
unbiased: `MultiStep` refuses it.

`through` is decode(encode(·)) of many vectors at once without the bytes, bit for bit, for a simulator of a thousand nodes.

Shapes: k values.
"""

from starling.gossip.compress.quantize.buckets import BUCKET, Bucketed
from starling.gossip.compress.quantize.floats import Bf16, Float, Float32, Float64, Fp16, identity
from starling.gossip.compress.quantize.kinds import Int4, Int8, integer, minifloat, qsgd, sign

__all__ = [
    "BUCKET",
    "Bf16",
    "Bucketed",
    "Float",
    "Float32",
    "Float64",
    "Fp16",
    "Int4",
    "Int8",
    "identity",
    "integer",
    "minifloat",
    "qsgd",
    "sign",
]
