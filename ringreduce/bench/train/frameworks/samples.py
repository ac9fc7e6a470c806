"""Batches as NumPy arrays, for the frameworks whose own arrays are made of them: batches.Shuffled without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ringreduce.bench.train import data
from ringreduce.bench.train.batches import share
from ringreduce.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ringreduce.bench.train.spec import Spec


class Samples:
    """28 x 28 images, epoch after epoch in a new order, whole batches only; the same for all who have the same seed."""

    def __init__(self, spec: Spec) -> None:
        self.pixels, labels = data.load(spec.data, spec.seed)
        self.labels = labels.astype(np.int32)
        if spec.batch_size > len(labels):
            raise InvalidArgumentError(f"a batch of {spec.batch_size} samples is more than the data set: {len(labels)}")
        self.batch_size = spec.batch_size
        self.seed = spec.seed
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def parts(self, step: int, parts: int, mine: range) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Images (count, 28, 28, 1) from 0 to 1, and labels, of some parts of that step's batch, which follow
        one another."""
        epoch, index = divmod(step, len(self.labels) // self.batch_size)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng((self.seed, epoch)).permutation(len(self.labels))
        start = index * self.batch_size
        first, last = (share(self.batch_size, part, parts) for part in (mine[0], mine[-1]))
        rows = self._order[start + first.start : start + last.stop]
        images = self.pixels[rows][..., np.newaxis].astype(np.float32)
        images /= 255
        return images, self.labels[rows]
