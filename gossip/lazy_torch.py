"""torch, imported on first use: algorithm modules can be imported, and their parameters read, by processes that never need torch.

The daemon and the command line check manifests against the very classes that the engine runs. `torch` here is a stand-in whose
attributes are those of the real module. `Tensor`, `Generator` and `nn` are for annotations only: at runtime they are placeholders, so
code that needs the class itself (isinstance, a call) writes `torch.Tensor`.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Generator", "Tensor", "nn", "torch"]

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor, nn
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module("torch"), name)
            setattr(self, name, value)
            return value

    class _Annotation(type):
        def __instancecheck__(cls, value: object) -> bool:
            raise TypeError(f"use torch.{cls.__name__}")

        def __call__(cls) -> Any:
            raise TypeError(f"use torch.{cls.__name__}")

    torch = _Torch()
    Tensor = _Annotation("Tensor", (), {})
    Generator = _Annotation("Generator", (), {})
    nn = _Annotation("nn", (), {})
