"""File of the initial model of a swarm of scripts: one vector, with names and shapes of its parameters.

Shapes: d parameters.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from starling.gossip.vector import Layout, finite
from starling.node.engine import tensor_file

_KIND, _X = "start", "x"
_DTYPES = (torch.float32, torch.float64)


def write(path: Path, layout: Layout, x: Tensor) -> None:
    """Write the file of a model x (d,). Raises OSError."""
    facts: dict[str, str | int] = {"kind": _KIND, "names": json.dumps(layout.names), "shapes": json.dumps(layout.shapes)}
    tensor_file.save(path, {_X: x}, facts).replace(path)


def load(path: Path) -> tuple[Layout, Tensor]:
    """Return the layout and the model (d,), whose memory is mapped from the file. Raises ValueError: it is no such file; OSError."""
    tensors, facts = tensor_file.load(path)
    x = tensors.get(_X)
    try:
        names, shapes = json.loads(str(facts["names"])), json.loads(str(facts["shapes"]))
        layout = Layout(tuple(map(str, names)), tuple(tuple(map(int, shape)) for shape in shapes), torch.float32)
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError("is not the start of a swarm of scripts") from error
    if facts.get("kind") != _KIND or x is None or x.dtype not in _DTYPES or x.shape != (layout.dim,) or not finite(x):
        raise ValueError("is not the start of a swarm of scripts")
    if len(set(layout.names)) != len(layout.names) != len(layout.shapes) or any(min(shape, default=1) < 0 for shape in layout.shapes):
        raise ValueError("is not the start of a swarm of scripts")
    return Layout(layout.names, layout.shapes, x.dtype), x
