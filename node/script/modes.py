"""The modes of torch under which a member computes inside a user's script, whichever modes the script is in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def quiet() -> Iterator[None]:
    """Record no gradients, and make tensors that may be changed outside of `torch.inference_mode` too."""
    with torch.inference_mode(mode=False), torch.no_grad():  # the order matters: the first switches gradients on
        yield
