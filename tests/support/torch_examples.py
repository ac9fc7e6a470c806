"""Examples that import torch, run by ranks of which none imports it itself: that is 3 s less for each."""

from example_runs import example


def torch_example(script: str, *options: str) -> str:
    """example(); rank_pool.py forks the ranks off a process that has imported what the source of a test imports."""
    import torch  # noqa: F401

    return example(script, *options)
