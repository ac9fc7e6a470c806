"""Hooks of shutdown() and of exit: they wait, at most 10 s, for the collectives that compiled code has under way.

JAX returns from a call before the program has run. At exit JAX itself would wait, after shutdown() and without a limit.
"""

from __future__ import annotations

import atexit

from ringreduce import state
from ringreduce.jax import failures

state.before_shutdown(failures.settle)
atexit.register(failures.settle)
