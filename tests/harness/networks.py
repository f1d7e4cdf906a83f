"""Small networks like torchvision's: batch normalisation, residuals, depthwise convolutions, dropout, tied and frozen weights."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from starling.node.tasks.digits import Digits


class BasicBlock(nn.Module):
    """The basic block of ResNet."""

    def __init__(self, inside, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inner + self.downsample(x))


class InvertedResidual(nn.Module):
    """The inverted residual of MobileNetV2."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU6(inplace=True),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=2 * width, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU6(inplace=True),
            nn.Conv2d(2 * width, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return x + self.conv(x)


class Tied(nn.Module):
    """Two layers with one weight, like embedding and head of a language model; a frozen layer; buffers of each kind."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(64, 16)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.head = nn.Linear(16, 10)
        self.register_buffer("scale", torch.full((16,), 0.5))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        x = self.frozen(x.flatten(1)).relu() * self.scale
        return self.head(self.second(self.first(x).relu()).relu())


def resnet():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        BasicBlock(8, 16, 2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def vgg():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(32, 10),
    )


def mobilenet():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(inplace=True),
        InvertedResidual(8),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


NETWORKS = {"resnet": resnet, "vgg": vgg, "mobilenet": mobilenet, "tied": Tied}


@dataclass(frozen=True, slots=True)
class Pictures:
    """The digits, learned by one of `NETWORKS`."""

    network: str = "resnet"

    metric = "accuracy"
    higher_is_better = True

    def model(self, generator):
        made = NETWORKS[self.network]()
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, math.sqrt(2.0 / parameter[0].numel()), generator=generator)
                elif parameter.dim() == 1 and not (parameter == 1).all():
                    parameter.zero_()
        return made

    def data(self, source, device):
        return Digits(model="cnn").data(source, device)

    def loss(self, model, batch):
        x, y = batch
        return cross_entropy(model(x), y)

    def score(self, model, batch):
        x, y = batch
        logits = model(x)
        return float((logits.argmax(1) == y).sum()), float(cross_entropy(logits, y, reduction="sum")), len(y)


class Mlp(Digits):
    """The built-in digits as a user's own task."""
