"""Labels of a micro-batch as bytes, which accompany its activations to the last stage.

dtype · dimensions · shape · values
"""

import math
import struct

import torch
from torch import Tensor

from starling.gossip.compress.activations import MAX_DIMS
from starling.gossip.errors import RemoteProtocolError
from starling.gossip.vector import finite

_HEADER = struct.Struct("<BB")  # dtype, dimensions
_DTYPES = (torch.uint8, torch.int32, torch.float32)


def pack(labels: Tensor) -> bytes:
    """Return labels (m, …), int64 or float32, in few bytes."""
    labels = labels.detach().cpu()
    if labels.is_floating_point():
        dtype = torch.float32
    else:
        dtype = torch.uint8 if int(labels.min()) >= 0 and int(labels.max()) < 256 else torch.int32
    shape = tuple(labels.shape)
    raw = labels.to(dtype).contiguous().numpy().tobytes()
    return _HEADER.pack(_DTYPES.index(dtype), len(shape)) + struct.pack(f"<{len(shape)}I", *shape) + raw


def unpack(data: bytes) -> Tensor:
    """Return labels (m, …), int64 or float32. Raises ValueError: the bytes are invalid."""
    if len(data) < _HEADER.size:
        raise ValueError("bad_labels")
    number, dims = _HEADER.unpack_from(data)
    begin = _HEADER.size + 4 * dims
    if number >= len(_DTYPES) or not 1 <= dims <= MAX_DIMS or len(data) < begin:
        raise ValueError("bad_labels")
    shape, dtype = struct.unpack_from(f"<{dims}I", data, _HEADER.size), _DTYPES[number]
    if not 1 <= math.prod(shape) == (len(data) - begin) / dtype.itemsize:
        raise ValueError("bad_labels")
    labels = torch.frombuffer(bytearray(data[begin:]), dtype=dtype).view(shape)
    if dtype == torch.float32:
        if not finite(labels):
            raise ValueError("bad_labels")
        return labels
    return labels.long()


def check(output: Tensor, labels: Tensor) -> None:
    """Raise RemoteProtocolError: a class that the model does not have, which a GPU would end the process for."""
    if not labels.is_floating_point() and not (int(labels.min()) >= 0 and int(labels.max()) < output.shape[-1]):
        raise RemoteProtocolError("", "activation_bad_labels")
