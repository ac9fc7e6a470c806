"""Hooks of shutdown(), of exit and of join(): JAX returns from a call before the program has run.

shutdown() and exit wait, at most 10 s, for the collectives that compiled code has under way. At exit JAX itself would
wait, after shutdown() and without a limit. join() and the calls like it wait without a limit, and raise their error:
otherwise they would come before this rank's last step.
"""

from __future__ import annotations

import atexit

from ringreduce import state
from ringreduce.jax import failures

state.before_shutdown(failures.settle)
state.before_join(failures.finish)
atexit.register(failures.settle)
