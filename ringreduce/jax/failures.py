"""Errors on their way out of XLA, which knows one class for all: back to the classes of ringreduce.errors.

An error's text begins with its class where it enters XLA. After an error JAX keeps a token that carries it, and every
collective of that thread would fail with the same text for ever: the token is dropped with the report.
"""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from ringreduce import config, errors

CLASSES: dict[str, type[errors.Error]] = {
    item.__name__: item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.Error)
}
# The last one that begins a word, since a callback's text is a whole traceback; XLA may add lines. Others have errors
# of two of the names as well: ours stand behind XLA's code, or that of callback.py.
_PATTERN = re.compile(
    r"(?:(?<=: )|\b(?!(?:Timeout)?Error: ))(?:ringreduce\.errors\.)?(" + "|".join(CLASSES) + r"): ([^\n]+)"
)
SETTLE_S = 10.0


def recovered(error: BaseException) -> errors.Error | None:
    """The error of this package that XLA reports in `error`; None when it reports another."""
    found = _PATTERN.findall(str(error))
    if not found:
        return None
    name, text = found[-1]
    return CLASSES[name](text)


@contextlib.contextmanager
def named_errors() -> Iterator[None]:
    """Within it, what a compiled collective raised is raised as the class it is, and the next collective works again.

        with hvd.named_errors():
            params = jax.block_until_ready(step(params, batch))

    A call of a compiled function may return before it has run: block on its result within. Collectives outside of jit
    need none of this.
    """
    try:
        yield
    except RuntimeError as error:
        ours = None if isinstance(error, errors.Error) else recovered(error)
        if ours is None:
            raise
        forget()
        raise ours from error


def forget() -> None:
    """Drops this thread's tokens."""
    tokens = _tokens()
    if tokens is not None:
        tokens.clear()


def finish() -> None:
    """Waits until the collectives that this thread has started in compiled code are done; raises their error."""
    with named_errors():
        jax.effects_barrier()


def settle(limit_s: float = SETTLE_S) -> None:
    """finish() for the way out: for at most so long, and with a warning in place of an error.

    What is still under way afterwards fails with ShutdownError, as shutdown() follows.
    """
    tokens = _tokens()
    if tokens is None:
        return
    end = time.monotonic() + limit_s
    try:
        for token in list(tokens.current_tokens.values()):
            buffer = getattr(token, "_buf", None)
            while buffer is not None and not buffer.is_ready() and time.monotonic() < end:
                time.sleep(0.001)
            if buffer is not None and buffer.is_ready():
                token.block_until_ready()
    except RuntimeError as error:
        text = f"collectives of a compiled program failed before shutdown(): {recovered(error) or error}"
        warnings.warn(text, RuntimeWarning, stacklevel=config.users_level())
    forget()


def _tokens() -> Any:
    return getattr(getattr(getattr(jax, "_src", None), "dispatch", None), "runtime_tokens", None)
