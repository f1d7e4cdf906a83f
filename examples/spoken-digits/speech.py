"""Which digit is spoken? The recordings of the Free Spoken Digit Dataset, as 24 times by 16 bands of a logarithmic spectrum."""

import os
import wave
from pathlib import Path

import numpy as np
import torch
from torch import nn

import starling

TIMES, BANDS = 24, 16
HELD_OUT = 5  # first recordings of each digit by each speaker, as the data's authors do


def spectrum(path: Path) -> torch.Tensor:
    with wave.open(str(path)) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 2**15
    sound = np.pad(sound, (0, max(0, 512 - len(sound))))
    power = torch.stft(torch.from_numpy(sound), 256, 80, window=torch.hann_window(256), return_complex=True).abs() ** 2
    bands = nn.functional.adaptive_avg_pool2d(power[None, 1:], (BANDS, TIMES))[0]
    return (bands + 1e-6).log().flatten()


def spoken() -> starling.Task:
    folder = Path(os.environ["STARLING_DATA"]) / "free-spoken-digit-dataset" / "recordings"
    files = sorted(folder.glob("*.wav"))
    labels, speakers, takes = zip(*(file.stem.split("_") for file in files), strict=True)
    x, y = torch.stack([spectrum(file) for file in files]), torch.tensor([int(label) for label in labels])
    test = torch.tensor([int(take) < HELD_OUT for take in takes])
    x = (x - x[~test].mean(0)) / x[~test].std(0)
    names = sorted(set(speakers))
    owner = torch.tensor([names.index(each) for each in speakers])
    return starling.task(
        model=lambda: nn.Sequential(nn.Linear(TIMES * BANDS, 32), nn.ReLU(), nn.Linear(32, 10)),
        train=(x[~test], y[~test]),
        test=(x[test], y[test]),
        keys=owner[~test],
    )
