"""A sampler that deals a data set out to the ranks and remembers how far an epoch has got."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch.utils.data

from ringreduce.basics import rank, size
from ringreduce.errors import InvalidArgumentError


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals out what is left of an epoch to the ranks that there are, each its share.

    Like torch's DistributedSampler, and in addition it counts the samples that record_batch() reports, so that an epoch
    can go on after a checkpoint with any number of ranks. Needs a job: rank and size are asked at each reset().

    Args:
        dataset: with a length that stays the same.
        shuffle: another order in each epoch, the same on all ranks.
        seed: of that order; the same on all ranks.

    Attributes:
        epoch, processed_num: what state_dict() saves; samples that all ranks have processed together in this epoch.
        num_replicas, rank: of this job. remaining_indices: of all ranks. num_samples: of this rank, as len().

    >>> sampler = hvd.elastic.ElasticSampler(dataset)
    >>> loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    >>> for index, batch in enumerate(loader):
    ...     train(batch)
    ...     sampler.record_batch(index, 32)
    >>> sampler.set_epoch(sampler.epoch + 1)
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, with nothing processed. To be called after an epoch, not before a resumed one."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts a batch that every rank has processed.

        Args:
            batch_idx: for Horovod's signature; without effect.
            batch_size: samples on each rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint needs; the same on all ranks that have recorded the same batches."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Goes on where state_dict() was taken. Raises InvalidArgumentError when it is not one of a sampler."""
        try:
            self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        except KeyError as missing:
            raise InvalidArgumentError(f"this is no state of an ElasticSampler: {missing} is missing") from None
        self.reset()

    def reset(self) -> None:
        """Deals out anew what is left of the epoch. Raises NotInitializedError outside a job."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)  # the order that Horovod's sampler has
        self.remaining_indices: list[int] = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's indices, every size-th of what is left; all ranks get as many, so a few may come twice."""
        left = self.remaining_indices
        return (left[i % len(left)] for i in range(self.rank, self.total_size, self.num_replicas))

    def __len__(self) -> int:
        return self.num_samples
