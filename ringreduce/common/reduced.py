"""Gradients that were reduced where they were computed, told apart by those who would reduce them once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_RANKS = "_ringreduce_reduced_over"


def mark(gradient: Any, ranks: Sequence[int]) -> None:
    """Notes, in the gradient itself, over which ranks it was reduced. What is made of it does not have the note."""
    setattr(gradient, _RANKS, list(ranks))


def is_reduced(gradient: Any, ranks: Sequence[int]) -> bool:
    """Whether the gradient was reduced over just these ranks."""
    return getattr(gradient, _RANKS, None) == list(ranks)
