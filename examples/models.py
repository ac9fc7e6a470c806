"""The three models of torch_fashion_mnist.py, all for 28 x 28 grey images and ten classes.

LeNet and the ResNet-18 variant are those of the multi-GPU chapters of "Dive into Deep Learning"; the MLP is there for
its 80 MB of gradients. Weights start as Xavier-uniform, biases as torch's default.
"""

import torch
from torch import nn


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 20, kernel_size=3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(20, 50, kernel_size=5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def mlp(hidden: int = 4096) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which is a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, kernel_size=3, padding=1),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 with a 3 x 3 first convolution and no max pooling."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, kernel_size=3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs in (64, 128, 256, 512):
        layers += [Residual(inputs, outputs, stride=1 if outputs == 64 else 2), Residual(outputs, outputs)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


MODELS = {"lenet": lenet, "mlp": mlp, "resnet18": resnet18}


def make(name: str, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model of that name, with the same weights on every rank that gives the same seed."""
    torch.manual_seed(seed)
    model = MODELS[name]()
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_uniform_(layer.weight)
    return model.to(dtype)
