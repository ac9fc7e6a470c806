"""English text that every Python has: the reference's chapters that help() shows, as numbers.

Examples in this folder learn which character comes next. The text is about 460,000 characters of 103 kinds.
"""

import pydoc_data.topics

import numpy as np
import torch


def characters() -> torch.Tensor:
    """The text as int64, each character by its place in the sorted alphabet."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return torch.from_numpy(np.unique(codes, return_inverse=True)[1])


def batch(text: torch.Tensor, step: int, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a step, (rows, length) both: pieces of the text, the same on whatever rank asks."""
    begin = torch.randint(len(text) - length, (rows, 1), generator=torch.Generator().manual_seed(step))
    places = begin + torch.arange(length)
    return text[places], text[places + 1]
