"""Ranks that `ringreduce top` looks at."""

from __future__ import annotations

import numpy as np
from ranks import receive_from_test, send_to_test


def waits_for_rank_1(what: str) -> None:
    """All ranks but 1 call what the test says; 1 does so once the test says "go". Each says first that all have met."""
    import ringreduce as hvd

    x = np.ones(1000, np.float32)
    with hvd.init() as world:
        hvd.allreduce(x)
        send_to_test("met")
        if world.rank == 1:
            receive_from_test()
        if what == "join":
            hvd.join()
        elif what == "message":
            if world.rank == 1:
                hvd.send(x, 0)
            elif world.rank == 0:
                hvd.recv(x, 1)
        elif what == "process set":
            pair = hvd.add_process_set([0, 1])
            send_to_test("added")
            if world.rank == 1:
                receive_from_test()
            if world.rank < 2:
                hvd.allreduce(x, name="pair", process_set=pair)
        else:
            hvd.allreduce(x, name="loss")
        hvd.barrier()
