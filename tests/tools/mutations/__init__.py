"""The mutations of mutation.py: one row is one line of the program, broken, and the tests that must notice.

A row breaks something that a user would meet as a wrong result, a hang, a missed death, or a refusal that is missing or
wrong. Its text occurs exactly once in its file (test_mutations.py). Choose tests that fail within seconds, each
time: a hang costs the whole limit, and what only chance makes fail survives on another day.
"""

from mutations import collective, edges, ends, engine, hosts, late, launch, lower, optimizer, recorder, rendezvous
from mutations.row import Mutation

__all__ = ["MUTATIONS", "Mutation"]

MUTATIONS: tuple[Mutation, ...] = (
    *lower.ROWS,
    *collective.ROWS,
    *engine.ROWS,
    *ends.ROWS,
    *hosts.ROWS,
    *edges.ROWS,
    *optimizer.ROWS,
    *rendezvous.ROWS,
    *launch.ROWS,
    *late.ROWS,
    *recorder.ROWS,
)
