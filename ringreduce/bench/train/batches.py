"""Which samples a process sees in which step: the same global batch however many ranks share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ringreduce.bench.train import data, models
from ringreduce.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from ringreduce.bench.train.spec import Spec

IMAGE_SIDE = 224


class Batches(Protocol):
    """A sequence of global batches, each cut into parts."""

    def count(self, parts: int) -> int:
        """Samples of a global batch of so many parts."""

    def part(self, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of one part of that step's batch."""


def make(spec: Spec) -> Batches:
    """What the spec's model is trained on. Raises InvalidArgumentError for a batch larger than the data set."""
    if spec.model == "resnet50":
        return RandomImages(spec.batch_size, spec.seed)
    return Shuffled(spec)


def share(count: int, part: int, parts: int) -> slice:
    """One part of count things: equal parts, of which the first count % parts have one more.

    >>> share(7, 0, 2), share(7, 1, 2)
    (slice(0, 4, None), slice(4, 7, None))
    """
    base, extra = divmod(count, parts)
    start = part * base + min(part, extra)
    return slice(start, start + base + (part < extra))


class Shuffled:
    """28 x 28 images, epoch after epoch in a new order, whole batches only: a window's steps are alike."""

    def __init__(self, spec: Spec) -> None:
        import torch

        pixels, labels = data.load(spec.data, spec.seed)
        if spec.batch_size > len(labels):
            raise InvalidArgumentError(f"a batch of {spec.batch_size} samples is more than the data set: {len(labels)}")
        self.pixels = torch.from_numpy(pixels.copy())
        self.labels = torch.from_numpy(labels.copy()).long()
        self.batch_size = spec.batch_size
        self.seed = spec.seed
        self._epoch = -1
        self._order = self.labels

    def count(self, parts: int) -> int:
        """See Batches: whatever the number of parts."""
        return self.batch_size

    def part(self, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """See Batches. Pixels from 0 to 1."""
        import torch

        epoch, index = divmod(step, len(self.labels) // self.batch_size)
        if epoch != self._epoch:
            self._epoch = epoch
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self._order = torch.randperm(len(self.labels), generator=generator)
        batch = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        rows = batch[share(self.batch_size, part, parts)]
        return self.pixels[rows].float().div_(255).unsqueeze(1), self.labels[rows]


class RandomImages:
    """One batch of noise per part, the same in every step: the input of the usual synthetic benchmark."""

    def __init__(self, per_part: int, seed: int) -> None:
        self.per_part = per_part
        self.seed = seed
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}

    def count(self, parts: int) -> int:
        """See Batches: every part has as many."""
        return self.per_part * parts

    def part(self, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """See Batches."""
        import torch

        if part not in self._parts:
            generator = torch.Generator().manual_seed(self.seed + part)
            images = torch.randn(self.per_part, 3, IMAGE_SIDE, IMAGE_SIDE, generator=generator)
            labels = torch.randint(0, models.IMAGENET_CLASSES, (self.per_part,), generator=generator)
            self._parts[part] = images, labels
        return self._parts[part]
