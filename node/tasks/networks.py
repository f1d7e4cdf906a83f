"""Small classifiers, initialised from one generator, so that every node starts with the same model.

No batch normalisation: it depends on the batch, and a node's batches may have few of the labels.
"""

import math

import torch
from torch import Generator, nn


def classifier(network: str, shape: tuple[int, int, int], hidden: int, classes: int, generator: Generator) -> nn.Module:
    """Return an "mlp" or a "cnn" for images of `shape` (channels, height, width); the former takes them flat."""
    if network == "cnn":
        return cnn(*shape, hidden, classes, generator)
    return mlp(math.prod(shape), hidden, classes, generator)


def mlp(features: int, hidden: int, classes: int, generator: Generator) -> nn.Module:
    """Map (m, features) -> (m, classes): one hidden layer with ReLU; d = (features + 1) · hidden + (hidden + 1) · classes."""
    return he_init(nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes)), generator)


def cnn(channels: int, height: int, width: int, hidden: int, classes: int, generator: Generator) -> nn.Module:
    """Map (m, channels, height, width) -> (m, classes): two 3×3 convolutions, each halving the image, and one hidden layer."""
    pixels = math.ceil(height / 4) * math.ceil(width / 4)
    layers = nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * pixels, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
    return he_init(layers, generator)


def he_init(layers: nn.Sequential, generator: Generator) -> nn.Module:
    """Normal weights of variance 2 / fan-in, 1 / fan-in for the last layer, whose output is not rectified; biases are 0.

    Source: He, Zhang, Ren and Sun 2015 (arXiv:1502.01852).
    """
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.Linear | nn.Conv2d):
                gain = 1.0 if layer is layers[-1] else 2.0
                layer.weight.normal_(0.0, math.sqrt(gain / layer.weight[0].numel()), generator=generator)
                assert layer.bias is not None
                layer.bias.zero_()
    return layers
