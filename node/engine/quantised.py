"""Recognise packed tensors of a model: values of few bits with scales, as bitsandbytes, torchao, GPTQ and AWQ store a frozen base.

What a `state_dict` holds of them is the library's own, may differ between devices, and is often not what the same module takes back.
"""

from collections.abc import Iterator

from torch import Tensor, nn

_MARKS = ("quant_state", "bnb_quantized", "CB")  # attributes that mark bitsandbytes' parameters
_PACKED = "qweight"  # a buffer in layers of GPTQ and AWQ, next to their scales


def packed(parameter: Tensor) -> bool:
    """Tell if a parameter is packed: marked so, an instance of a tensor subclass, or integer, which cannot be trained."""
    if any(hasattr(parameter, mark) for mark in _MARKS):
        return True
    return type(parameter.data) is not Tensor or not (parameter.is_floating_point() or parameter.is_complex())


def quantised(model: nn.Module) -> frozenset[str]:
    """Return the names in the model's `state_dict` of packed tensors and of what belongs to them; empty if it has none."""
    layers = [(prefix, module) for prefix, module in model.named_modules() if _of_packed(module)]
    names = model.state_dict() if layers else ()
    return frozenset(name for prefix, module in layers for name in names if _belongs(name, prefix, module))


def _of_packed(module: nn.Module) -> bool:
    return hasattr(module, _PACKED) or any(packed(each) for each in module.parameters(recurse=False))


def _belongs(name: str, prefix: str, module: nn.Module) -> bool:
    """Tell if an entry is of this layer itself and neither a plain parameter nor, next to packed parameters, a plain buffer."""
    if not name.startswith(prefix and f"{prefix}."):
        return False
    own = name.removeprefix(prefix and f"{prefix}.")
    if own.partition(".")[0] in dict(module.named_children()):
        return False
    plain = {each for each, parameter in module.named_parameters(recurse=False) if not packed(parameter)}
    if not hasattr(module, _PACKED):
        plain |= {each for each, _ in module.named_buffers(recurse=False)}
    return own not in plain


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield plain tensors with a parameter's values: itself, or the parts of a tensor subclass."""
    data = tensor.detach()
    if hasattr(data, "__tensor_flatten__"):
        for part in data.__tensor_flatten__()[0]:
            yield from pieces(getattr(data, part))
    else:
        yield data
