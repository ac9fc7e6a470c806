"""The models, each with the same weights wherever it is made with the same seed.

LeNet and ResNet-18 are the variants for 28 x 28 grey images of the multi-GPU chapters of "Dive into Deep Learning", the
MLP is there for its 80 MB of gradients; their weights start Xavier-uniform. ResNet-50 is that of He et al. 2015 with
the stride in the 3 x 3 convolution, as it is usually benchmarked; its convolutions start He-normal, and the last scale
of each block at zero (Goyal et al. 2017): otherwise its first gradients are so large that rounding alone moves them by
1 %, and no two ways to compute them reach the same loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

CLASSES = 10
IMAGENET_CLASSES = 1000


def make(name: str, seed: int) -> nn.Module:
    """The fp32 model "lenet", "mlp", "resnet18" or "resnet50"."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    if name == "resnet50":
        return resnet50()
    model = {"lenet": lenet, "mlp": mlp, "resnet18": resnet18}[name]()
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_uniform_(layer.weight)
    return model


def lenet() -> nn.Module:
    """Two convolutions and two linear layers."""
    from torch import nn

    features: list[nn.Module] = []
    for inputs, outputs, kernel in ((1, 20, 3), (20, 50, 5)):
        features += [nn.Conv2d(inputs, outputs, kernel), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def mlp() -> nn.Module:
    """Two hidden layers of 4096: 20 M parameters."""
    from torch import nn

    hidden = 4096
    layers = [nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, CLASSES))


def resnet18() -> nn.Module:
    """With a 3 x 3 first convolution and no max pooling."""
    from torch import nn

    layers: list[nn.Module] = [nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for index in range(8):  # four stages of two blocks
        outputs, stride = 64 << index // 2, 2 if index in (2, 4, 6) else 1
        body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1),
            nn.BatchNorm2d(outputs),
        )
        layers.append(_residual(body, nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def resnet50() -> nn.Module:
    """For 224 x 224 colour images: 25.6 M parameters."""
    from torch import nn

    layers: list[nn.Module] = [*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and block == 0 else 1
            convolution, norm = _normed(width, 4 * width, 1, 1)
            nn.init.zeros_(norm.weight)
            body = nn.Sequential(
                *_normed(inputs, width, 1, 1),
                nn.ReLU(inplace=True),
                *_normed(width, width, 3, stride),
                nn.ReLU(inplace=True),
                convolution,
                norm,
            )
            shortcut = nn.Identity() if block else nn.Sequential(*_normed(inputs, 4 * width, 1, stride))
            layers.append(_residual(body, shortcut))
            inputs = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, IMAGENET_CLASSES))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


def _normed(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution that keeps the size (up to the stride), and the batch norm that makes its bias needless."""
    from torch import nn

    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)


def _residual(body: nn.Module, shortcut: nn.Module) -> nn.Module:
    """relu(body(x) + shortcut(x))."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body
            self.shortcut = shortcut

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.body(x) + self.shortcut(x))

    return Residual()
