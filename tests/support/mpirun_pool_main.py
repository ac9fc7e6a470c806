"""One rank of mpirun_pool.py, started by an mpirun: it does jobs as rank_server.py would, until it gets None."""

import faulthandler
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Client
from typing import Any

from rank_server import call, die_with_parent


def main(address: str) -> int:
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    from mpi4py import MPI

    with Client(address, "AF_UNIX") as test:
        test.send((MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, os.getpid()))
        while (job := test.recv()) is not None:
            test.send_bytes(pickle.dumps(answer(*job)))
    return 0


def answer(
    path: str, module: str, work: str, args: bytes, env: dict[str, str | None]
) -> tuple[Any, str | None, str | None]:
    """(result, None, None) or (None, the exception, its class's name)."""
    before = dict(os.environ)
    for name, value in env.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    try:
        return call(path, module, work, pickle.loads(args)), None, None
    except BaseException as error:
        traceback.print_exc()
        return None, repr(error), type(error).__name__
    finally:
        for name in env:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
