"""The parameters of two models as numbers, so that no figure depends on what is installed or downloaded."""

from __future__ import annotations

import math
from typing import TypeAlias

Shapes: TypeAlias = list[tuple[int, ...]]


def _norm(channels: int) -> Shapes:
    return [(channels,), (channels,)]


def resnet50() -> Shapes:
    """161 tensors, 25 557 032 elements (He et al. 2015, arXiv:1512.03385, with 1000 classes)."""
    shapes: Shapes = [(64, 3, 7, 7), *_norm(64)]
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        outputs = 4 * width
        for block in range(blocks):
            shapes += [(width, inputs, 1, 1), *_norm(width), (width, width, 3, 3), *_norm(width)]
            shapes += [(outputs, width, 1, 1), *_norm(outputs)]
            if block == 0:
                shapes += [(outputs, inputs, 1, 1), *_norm(outputs)]
            inputs = outputs
    return [*shapes, (1000, 2048), (1000,)]


def bert_base() -> Shapes:
    """199 tensors, 109 482 240 elements (Devlin et al. 2018, arXiv:1810.04805: uncased, with the pooler)."""
    width, inner = 768, 3072
    shapes: Shapes = [(30522, width), (512, width), (2, width), *_norm(width)]
    for _ in range(12):
        shapes += [(width, width), (width,)] * 4 + _norm(width)
        shapes += [(inner, width), (inner,), (width, inner), (width,), *_norm(width)]
    return [*shapes, (width, width), (width,)]


def counts(shapes: Shapes) -> list[int]:
    """Elements of each tensor."""
    return [math.prod(shape) for shape in shapes]


def lists() -> dict[str, list[int]]:
    """The lists that kernels are measured with, by name: elements of float32 each."""
    tiny = [8256 + 64 * (i % 7) for i in range(500)]  # 500 of 32 KiB and a little: 16 MiB in all
    return {
        "500-tiny": tiny,
        "4-of-16MiB": [4 << 20] * 4,
        "resnet50": counts(resnet50()),
        "bert-base": counts(bert_base()),
    }


def tiny() -> Shapes:
    """Three tensors, to try a program with."""
    return [(300, 250), (7,), (64, 3)]


MODELS = {"resnet50": resnet50, "bert-base": bert_base, "tiny": tiny}
