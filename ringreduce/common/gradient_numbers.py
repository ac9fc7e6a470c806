"""Which gradient is whose: reduce, gather, scatter, send and recv have gradients that ranks exchange.

A rank whose loss depends on several of these operations computes their gradients in an order of its own: that of one
backward pass or of one for each loss, or one that the framework chooses by the whole loss. So each gradient carries the
number of its operation among those of its kind, which is the same on all ranks that take part. Gradients that meet in
another order are then a MismatchError, not exchanged.
"""

from __future__ import annotations

from collections import Counter
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet

MOST_TAG = (1 << 31) - 1
"""The largest tag of a user's message."""
_STEP = 1_000_003
"""Odd, so that 2^31 messages of one tag have as many tags of gradients."""
_PASS_STEP = 1_810_261_975
"""_STEP times 2^31 over the golden ratio: thousand passes of a message meet no other within 900,000 messages."""

_numbers: WeakKeyDictionary[Any, Counter[tuple[Any, ...]]] = WeakKeyDictionary()
"""By group, so that numbers begin anew with each."""


def number_of(process_set: ProcessSet, *kind: Any) -> int:
    """The number of this operation among those of its kind, from 0."""
    numbers = _numbers.setdefault(process_set.group, Counter())
    numbers[kind] += 1
    return numbers[kind] - 1


def checked_tag(tag: int) -> int:
    """The tag of a user's message. Raises InvalidArgumentError where it can be none."""
    try:
        if 0 <= index(tag) <= MOST_TAG:
            return index(tag)
    except TypeError:
        pass
    raise InvalidArgumentError(f"tag={tag!r}: a whole number from 0 to {MOST_TAG} is expected")


def gradient_tag(process_set: ProcessSet, way: str, peer: int, tag: int) -> int:
    """The tag of a message's gradient: negative, which no user's is, and another one than the next message's.

    A gradient's tag is its message's own, so that of the gradient's gradient needs no number.

    Args:
        way: "send" or "recv".
        peer: global rank.
        tag: the message's, also where it is a gradient itself.
    """
    if tag < 0:
        return _derived(tag)
    return -1 - (tag + number_of(process_set, way, peer, tag) * _STEP) % (MOST_TAG + 1)


def tag_of_pass(tag: Any, number: int) -> Any:
    """The tag of a message's gradient in backward passes after the first, which has this tag.

    Args:
        tag: of gradient_tag(); a number, or a tensor that holds it.
        number: of the pass through this message, from 0.
    """
    return tag if number == 0 else -1 - (-1 - tag + number * _PASS_STEP) % (MOST_TAG + 1)


def tangent_tag(tag: int) -> int:
    """The tag of a message's tangent, from that of the message's gradient.

    It goes the way of the message, as the gradient's gradient does, and has another tag.
    """
    return _derived(_derived(tag))


def _derived(tag: int) -> int:
    """Another negative tag, for each negative tag its own: a generator of numbers of full period, the rand() of C."""
    return -1 - ((-1 - tag) * 1_103_515_245 + 12_345) % (MOST_TAG + 1)
