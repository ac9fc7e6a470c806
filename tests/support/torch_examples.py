"""Runs examples that use torch on ranks that need not import it, which takes 3 s."""

from example_runs import example


def torch_example(script: str, *options: str) -> str:
    """As example(). Because of the import below, rank_pool.py starts ranks from a process that has torch already."""
    import torch  # noqa: F401

    return example(script, *options)
