"""A quantizer: float32 without its last byte."""

import numpy as np
import torch


class Fp24:
    code = 128  # on the wire; 128 … 255 are for packages
    omega = 2.0**-30

    def encode(self, values, generator):
        floats = values.detach().cpu().float()
        if not torch.isfinite(floats).all():
            raise ValueError("not_finite")
        return floats.numpy().astype("<f4").view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()

    def decode(self, data, count):
        if len(data) != self.size(count):
            raise ValueError("bad_length")
        filled = np.zeros((count, 4), np.uint8)
        filled[:, 1:] = np.frombuffer(data, np.uint8).reshape(count, 3)
        values = torch.from_numpy(filled.view("<f4").reshape(count))
        if not torch.isfinite(values).all():
            raise ValueError("not_finite")
        return values

    def size(self, count):
        return 3 * count
