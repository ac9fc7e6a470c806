"""What a grouped all-reduce costs within a tf.function when there is next to nothing to move.

    .venv/bin/ringrun -np 2 .venv/bin/python benchmarks/tensorflow_hot_path.py

The same tf.function of 100 small tensors without all-reduce, without it but after a barrier (what the ranks lose by
waiting for the slower one of each call), and with all results reduced as one group, in turns; medians. Promised: at
most 200 us over the first.
"""

from __future__ import annotations

from typing import Any

import hot_path
import tensorflow as tf

import ringreduce
import ringreduce.tensorflow as hvd


def main() -> None:
    """Measures, and prints on rank 0."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    # Variables, as in a training step. A function that captures nothing and takes 100 arguments is called by a shorter
    # way in TensorFlow's Python, 500 us faster, that any capture closes.
    values = [tf.Variable(tf.fill([hot_path.ELEMENTS], float(i + hvd.rank()))) for i in range(hot_path.TENSORS)]

    @tf.function
    def plain() -> list[Any]:
        return [value * 2 for value in values]

    @tf.function
    def reduced() -> Any:
        return hvd.grouped_allreduce([value * 2 for value in values], op=hvd.Sum)

    others = sum(range(hvd.size()))
    for i, value in enumerate(reduced()):
        assert float(value[0]) == 2 * (i * hvd.size() + others), f"tensor {i}: {value}"
    hot_path.report(
        "a tf.function",
        [plain, lambda: (ringreduce.barrier(), plain()), reduced],
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
