"""Keys of the built-in tasks, as constructors check them and manifests give them. Torch-free."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from starling.gossip.bounds import parameters

Network = Literal["mlp", "cnn"]
Few = Annotated[int, Meta(ge=1, le=256)]
Pixels = Annotated[int, Meta(ge=1, le=1024)]
Some = Annotated[int, Meta(ge=1, le=4096)]
Many = Annotated[int, Meta(ge=1, le=1 << 16)]
Precision = Literal["float32", "float64"]
Scale = Annotated[float, Meta(ge=0, le=1e6)]
Word = Annotated[str, Meta(min_length=1, max_length=32)]
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers that a task holds at least, for an estimate of its memory before any of it is allocated.

    Args:
        parameters: of the model.
        trained: for each sample of a local step.
        tested: for each held-out sample that is evaluated at once.
        fixed: whatever the batch, 8 bytes each.
    """

    parameters: int
    trained: int = 0
    tested: int = 0
    fixed: int = 0


def _classifier(model: str, shape: tuple[int, int, int], hidden: int, classes: int) -> Size:
    """Return the size of `starling.node.tasks.networks.classifier`: per layer its output, its activation and its gradient."""
    channels, height, width = shape
    inputs = math.prod(shape)
    if model == "softmax":
        return Size((inputs + 1) * classes, 2 * inputs)
    if model == "mlp":
        return Size((inputs + 1) * hidden + (hidden + 1) * classes, 2 * inputs + 3 * hidden, inputs + 2 * hidden)
    half, quarter = math.ceil(height / 2) * math.ceil(width / 2), math.ceil(height / 4) * math.ceil(width / 4)
    convolved = (9 * channels + 1) * 16 + (9 * 16 + 1) * 32
    inner = 16 * half + 32 * quarter + hidden
    return Size(convolved + (32 * quarter + 1) * hidden + (hidden + 1) * classes, inputs + 3 * inner, inputs + 32 * half)


@parameters
class Digits:
    """Keys of the handwritten digits.

    Args:
        model: "mlp" (one hidden layer) or "cnn" (two convolutions and one hidden layer).
        hidden: units of the hidden layer, 1 to 65,536.
    """

    model: Network = "mlp"
    hidden: Many = 64

    def size(self) -> Size:
        return _classifier(self.model, (1, 8, 8), self.hidden, 10)


@parameters
class Images:
    """Keys of images from files.

    Args:
        model: "mlp" or "cnn".
        path: the built-in data, at the same place on every node; a volunteer's own data come before it.
        hidden: units of the hidden layer, 1 to 65,536.
        height: pixels.
        width: pixels.
        channels: 1 for grey (n, height, width), else images are (n, height, width, channels).
        classes: labels are 0 to classes − 1.
    """

    model: Network = "mlp"
    path: str = ""
    hidden: Many = 128
    height: Pixels = 28
    width: Pixels = 28
    channels: Annotated[int, Meta(ge=1, le=16)] = 1
    classes: Annotated[int, Meta(ge=2, le=1 << 16)] = 10

    def size(self) -> Size:
        """Return the sizes without the data, whose number of samples only the file has."""
        return _classifier(self.model, (self.channels, self.height, self.width), self.hidden, self.classes)


@parameters
class Synthetic:
    """Keys of the Gaussian classes.

    Args:
        model: "softmax", which begins at 0, or "mlp" (one hidden layer).
        hidden: mlp: units of the hidden layer, 1 to 65,536.
    """

    model: Literal["softmax", "mlp"] = "softmax"
    hidden: Many = 32

    def size(self) -> Size:
        return _classifier(self.model, (1, 8, 8), self.hidden, 10)


@parameters
class Text:
    """Keys of text.

    Args:
        path: the built-in text, at the same place on every node; a volunteer's own comes before it.
        context: bytes the model looks back, 1 to 65,536.
        width: of the model, a multiple of heads.
        layers: transformer blocks, 1 to 256.
        heads: attention heads, 1 to 256.
        tied: one table for bytes read and bytes predicted; a crew needs false.
    """

    path: str = ""
    context: Many = 128
    width: Annotated[int, Meta(ge=1, le=1 << 14)] = 128
    layers: Few = 4
    heads: Few = 4
    tied: bool = True

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads = {self.heads}, got {self.width}")

    def size(self) -> Size:
        """Return the size of `starling.node.tasks.gpt.Gpt`: sixteen widths a layer for the gradient, and twice the logits of 256 bytes."""
        w, t, logits = self.width, self.context, 2 * 256
        parameters = (256 * (2 - self.tied) + t + 2) * w + self.layers * (12 * w + 13) * w
        return Size(parameters, t * (16 * self.layers * w + logits), t * (8 * w + logits))


@parameters
class Quadratic:
    """Keys of bowls.

    Args:
        dim: d, 1 to 4,096.
        nodes: n, 1 to 4,096.
        condition: ratio of the largest curvature, which is 1, to the smallest, 1 to 1e12.
        spread: how much nodes' optima differ, 0 to 1e6.
        noise: standard deviation of the gradient's error in each coordinate, 0 to 1e6.
        dtype: "float32" or "float64".
    """

    dim: Some = 50
    nodes: Some = 16
    condition: Annotated[float, Meta(ge=1, le=1e12)] = 10.0
    spread: Scale = 1.0
    noise: Scale = 0.0
    dtype: Precision = "float32"

    def size(self) -> Size:
        """Return the sizes: one node's matrix, the sum of all, and their factors."""
        return Size(self.dim, fixed=8 * self.dim**2)


@parameters
class Diagonal(Quadratic):
    """Keys of bowls whose axes are the coordinates.

    Args:
        dim: d, 1 to 16,777,216.
        nodes: n, 1 to 100,000.
    """

    dim: Annotated[int, Meta(ge=1, le=1 << 24)] = 1000
    nodes: Annotated[int, Meta(ge=1, le=100_000)] = 16

    def size(self) -> Size:
        """Return the sizes: one node's diagonal, the sum of all, and their factors."""
        return Size(self.dim, fixed=8 * self.dim)


@parameters
class Logistic:
    """Keys of logistic regression.

    Args:
        dim: d, 1 to 4,096.
        nodes: n, 1 to 4,096.
        samples: of each node, 2 to 65,536.
        skew: share of the samples that has the node's main label, alternately −1 and 1, in [0.5, 1].
        mu: weight of the penalty on ‖w‖²/2, 1e-6 to 10.
        dtype: "float32" or "float64".
    """

    dim: Some = 100
    nodes: Some = 16
    samples: Annotated[int, Meta(ge=2, le=1 << 16)] = 200
    skew: Annotated[float, Meta(ge=0.5, le=1)] = 0.9
    mu: Annotated[float, Meta(ge=1e-6, le=10)] = 0.01
    dtype: Precision = "float32"

    def size(self) -> Size:
        """Return the samples of all nodes, as drawn, together, and times their weight."""
        return Size(self.dim, fixed=3 * self.nodes * self.samples * self.dim)


@dataclass(frozen=True, slots=True)
class Script:
    """Keys of a swarm that its members' own scripts train. They have no size: only the scripts know their model.

    Args:
        metric: what scripts measure, a word of 1 to 32 letters, digits and underscores that begins with a letter.
        higher_is_better: whether a higher value of it is better.
    """

    metric: Word = "loss"
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if _WORD.fullmatch(str(self.metric)) is None:
            raise ValueError(
                f"metric must be a word of 1 to 32 letters, digits and underscores that begins with a letter, got {self.metric!r:.80}"
            )
