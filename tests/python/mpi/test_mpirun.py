"""Under each real mpirun: places with and without mpi4py, communicators as arguments, a wrong pair, a killed rank."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import mpis
import pytest
from deadlines import HANG_S, SOON_S
from example_runs import EXAMPLES, RINGRUN, write_data
from ranks import clean_environment

import ringreduce


@pytest.fixture(name="mpi", params=mpis.NAMES)
def each_mpi(request: pytest.FixtureRequest) -> mpis.Mpi:
    return mpis.get(request.param)


FOLDER = "RR_TEST_SAYS"


def ask(mpi: mpis.Mpi, ranks: int, code: str, folder: Path, **environ: str) -> list[Any]:
    """What each rank said, when mpirun ends well."""
    mpi.run(ranks, code, extra={FOLDER: str(folder), **environ})
    return said(folder, ranks)


def said(folder: Path, ranks: int) -> list[Any]:
    """What each rank said with say(). In files: mpirun mixes long lines of several ranks."""
    return [json.loads((folder / str(rank)).read_text()) for rank in range(ranks)]


SAY = """
import json, os, sys
import numpy as np
import ringreduce as rr

def say(rank, what):
    with open(f"{os.environ['RR_TEST_SAYS']}/{rank}", "x") as file:
        json.dump(what, file)

def total(process_set=rr.global_process_set):
    return rr.allreduce(np.arange(5.0) + 10 * process_set.rank(), op=rr.Sum, process_set=process_set).tolist()

def caught(call):
    try:
        return f"no error but {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def expected_total(size: int) -> list[float]:
    return [size * column + 10.0 * sum(range(size)) for column in range(5)]


# --- mpi4py never, afterwards, before, and with initialize = False; MPI finalised first or last -----------------------

NEVER_THEN_AFTER = f"""{SAY}
rr.init()
seen = [rr.rank(), rr.size(), rr.local_rank(), rr.local_size(), rr.cross_size(), total(), "mpi4py" in sys.modules]
seen += [rr.mpi_built(), rr.mpi_enabled()]
rr.shutdown()
from mpi4py import MPI
rr.init()
seen += [rr.rank() == MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, total(), MPI.Get_library_version()]
say(rr.rank(), seen)
"""  # ends with both alive: ours goes first, at exit, then mpi4py's

BEFORE = f"""{SAY}
from mpi4py import MPI
rr.init()
mine = np.array([rr.rank() + 1.0])
both = [total(), MPI.COMM_WORLD.allreduce(rr.rank(), MPI.SUM), rr.allreduce(mine, op=rr.Sum).tolist()]
MPI.Finalize()
both.append(total())
rr.shutdown()
rr.init()
both.append(total())
say(rr.rank(), both)
rr.shutdown()
"""

UNINITIALIZED = f"""{SAY}
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
with rr.init() as world:
    seen = [total(), MPI.Is_initialized(), caught(rr.mpi_threads_supported)]
seen.append(caught(lambda: rr.init(comm=MPI.COMM_WORLD)))
MPI.Init_thread(MPI.THREAD_FUNNELED)
with rr.init(comm=MPI.COMM_WORLD):
    seen.append(total())
    MPI.Finalize()
    seen.append(total())
seen.append(caught(lambda: rr.init(comm=MPI.COMM_WORLD)))
with rr.init():
    seen += [total(), *(caught(lambda: rr.add_process_set(comm)) for comm in (MPI.COMM_WORLD, MPI.COMM_NULL))]
say(world.rank, seen)
"""


UNDER_WAY = f"""{SAY}
rr.init()
from mpi4py import MPI
total()
rank = rr.rank()
handles = [rr.allreduce_async(np.ones(1_000_000), op=rr.Sum, name=f"g{{i}}") for i in range(12)]
MPI.COMM_WORLD.Barrier()
MPI.Finalize()
say(rank, [caught(lambda: rr.synchronize(handle)) for handle in handles])
"""


def test_without_mpi4py_and_then_with_it(mpi: mpis.Mpi, tmp_path: Path) -> None:
    everyone = ask(mpi, 2, NEVER_THEN_AFTER, tmp_path)
    right = expected_total(2)
    for rank, seen in enumerate(everyone):
        assert seen[:6] == [rank, 2, rank, 2, 1, right]
        assert seen[6:9] == [False, ringreduce.mpi_built(), False]  # mpi4py is not imported; nothing goes over MPI
        assert seen[9:12] == [True, 2, right]
        assert mpi.version.split()[-1] in seen[12]


def test_mpi4py_first_and_finalized_first(mpi: mpis.Mpi, tmp_path: Path) -> None:
    right = expected_total(2)
    assert ask(mpi, 2, BEFORE, tmp_path) == [[right, 1, [3.0], right, right]] * 2


def test_mpi_finalized_with_operations_under_way(mpi: mpis.Mpi, tmp_path: Path) -> None:
    """The engine's thread is within MPI then; MPICH 4 ended the job by a mutex that this thread held."""
    for rank, ends in enumerate(ask(mpi, 2, UNDER_WAY, tmp_path, RINGREDUCE_TRANSPORT="mpi")):
        here = rf"ringreduce rank {rank}: shutdown\(\) or MPI\.Finalize\(\) was called here"
        other = rf"rank {1 - rank} called shutdown\(\) or ended"  # before this rank came to its own call
        for end in ends:
            assert end.startswith("no error but ") or re.search(f"^ShutdownError: .*({here}|{other})", end)


FORKED = f"""{SAY}
from mpi4py import MPI

class Alone(MPI.Intracomm):
    def Idup(self, info=None):
        raise AssertionError("MPI's connections are the parent's")

rr.init()
rank = rr.rank()
seen = total()
child = os.fork()
if child == 0:
    def own():
        rr.init(comm=Alone(MPI.COMM_SELF))
        return [rr.rank(), rr.size(), total()]

    os._exit(caught(own) != f"no error but {{[0, 1, [0.0, 1.0, 2.0, 3.0, 4.0]]}}")
say(rank, [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen, total()])
"""


def test_a_forked_child_may_be_a_job_of_its_own(mpi: mpis.Mpi, tmp_path: Path) -> None:
    """It calls no MPI, which ended some children of MPICH 4, and their jobs, by SIGSEGV."""
    right = expected_total(2)
    assert ask(mpi, 2, FORKED, tmp_path, RINGREDUCE_TRANSPORT="mpi") == [[0, right, right]] * 2


def test_mpi_initialized_late_and_finalized_early(mpi: mpis.Mpi, tmp_path: Path) -> None:
    right = expected_total(2)
    everyone = ask(mpi, 2, UNINITIALIZED, tmp_path)
    for seen in everyone:
        assert seen[:2] == [right, False]
        assert "Horovod MPI is not enabled" in seen[2]
        assert seen[3].startswith("InvalidArgumentError: init(comm=...): MPI is not initialized. Call MPI.Init()")
        assert seen[4:6] == [right, right]
        assert seen[6].startswith("InvalidArgumentError: init(comm=...): MPI was finalized")
        assert seen[7] == right
        for text in seen[8:]:
            assert text.startswith("InvalidArgumentError: ProcessSet(comm): MPI was finalized")
        assert len(seen) == 10


UNKNOWN_LAUNCHER = f"""{SAY}
from mpi4py import MPI
for name in [*os.environ]:
    if name.startswith(("PMI", "OMPI_COMM", "MPI_LOCAL")):
        del os.environ[name]
seen = [caught(rr.init)]
with rr.init(comm=MPI.COMM_SELF) as alone:
    seen.append(alone.size)
with rr.init(comm=MPI.COMM_WORLD):
    seen.append(total())
say(MPI.COMM_WORLD.rank, seen)
"""


def test_a_launcher_without_known_variables(mpi: mpis.Mpi, tmp_path: Path) -> None:
    for rank, (error, alone, right) in enumerate(ask(mpi, 2, UNKNOWN_LAUNCHER, tmp_path)):
        assert error.startswith(f"InvalidArgumentError: [communicator] MPI says that this process is rank {rank} of 2")
        assert (alone, right) == (1, expected_total(2))


# --- communicators ----------------------------------------------------------------------------------------------------

COMMUNICATORS = f"""{SAY}
import signal, types, warnings
from mpi4py import MPI
from ringreduce.job import communicators

world = MPI.COMM_WORLD
me = world.rank
seen = {{}}

half = world.Split(me % 2, key=-me)  # {{2, 0}} and {{3, 1}}, at the same time
with rr.init(comm=half) as place:
    seen["half"] = [place.rank, place.size, place.local_rank, place.local_size, place.cross_rank, place.cross_size]
    seen["half total"] = rr.allreduce(np.array([me, 1]), op=rr.Sum).tolist()
    half.Free()
    seen["freed"] = rr.allgather(np.array([me])).tolist()

pairs = world.Split(me // 2)
some = world.Split(0 if me in (1, 3) else MPI.UNDEFINED)
pair, odd = rr.ProcessSet(pairs), rr.ProcessSet(some)
seen["unregistered"] = [pair.process_set_id, pair.ranks, pair.size(), "Intracomm" in str(pair)]
for round in range(2):  # sets made from communicators register again
    with rr.init(comm=world.Dup(), process_sets=[pair, [0, 3]]):
        seen["place"] = [rr.rank(), rr.size()]
        seen["pair"] = [pair.process_set_id, pair.ranks, pair.rank(), total(pair)]
        rr.add_process_set(odd)
        seen["odd"] = [odd.process_set_id, odd.ranks, odd.included(), total(odd) if odd.included() else None]
        seen["outside"] = caught(lambda: rr.allreduce(1, process_set=odd))
        again = world.Split(me // 2)
        seen["duplicates"] = [caught(lambda: rr.add_process_set(what)) for what in (again, world, [2, 3], [0, 1], odd)]
        seen["nobody"] = caught(lambda: rr.add_process_set(MPI.COMM_NULL))
        seen["mixed"] = caught(lambda: rr.add_process_set(again if me == 3 else [1, 2]))
        seen["removed"] = [rr.remove_process_set(pair), rr.remove_process_set(odd), pair.process_set_id]
        seen["new"] = rr.add_process_set(again).ranks
        seen["still"] = total()

with rr.init(process_sets=[pairs]):  # without a communicator of the job: places from the launcher
    seen["launched"] = [rr.rank(), total()]

with rr.init(comm=MPI.COMM_SELF) as alone:
    seen["self"] = [alone.rank, alone.size, total()]
    seen["second"] = []
    for comm in (MPI.COMM_SELF, world, MPI.COMM_NULL):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            rr.init(comm=comm)
        seen["second"].append([str(one.message).partition(": ")[2] for one in warned])

seen["null"] = caught(lambda: rr.init(comm=MPI.COMM_NULL))
inter = pairs.Create_intercomm(0, world, 2 - me // 2 * 2)
seen["inter"] = caught(lambda: rr.init(comm=inter))
seen["both"] = caught(lambda: rr.init(comm=world, rank=0, size=4))

hosts = communicators.rendezvous.host_identity, communicators.os
if me >= 2:
    communicators.rendezvous.host_identity = lambda: b"another kernel"
    communicators.os = types.SimpleNamespace(uname=lambda: types.SimpleNamespace(nodename="far"), environ=os.environ)
with rr.init(comm=world) as place:  # two ranks on each of two hosts, which MPI links
    seen["hosts"] = [place.local_rank, place.local_size, place.cross_rank, place.cross_size]
    first = total()
    total()  # needs the other host's second request, which comes after what each leader has sent for the first
    seen["across"] = [first, rr.mpi_enabled(), rr.mpi_threads_supported(), rr.stats()["bytes_on_wire"] > 0]
communicators.rendezvous.host_identity, communicators.os = hosts

os.environ["RINGREDUCE_INIT_TIMEOUT"] = "0.3" if me else "60"
if me == 0:
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # as Ctrl-C
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        seen["late"] = caught(lambda: rr.init(comm=world))
    except KeyboardInterrupt:
        seen["late"] = "interrupted"
    world.Send(bytearray(1), 3)
elif me == 3:
    for other in range(3):
        world.Recv(bytearray(1), other)  # comes when that rank has given up
else:
    seen["late"] = caught(lambda: rr.init(comm=world))
    world.Send(bytearray(1), 3)
os.environ["RINGREDUCE_INIT_TIMEOUT"] = "60"
with rr.init(comm=world):
    seen["after"] = total()
say(me, seen)
"""


def test_communicators(mpi: mpis.Mpi, tmp_path: Path) -> None:
    everyone = ask(mpi, 4, COMMUNICATORS, tmp_path)
    for me, seen in enumerate(everyone):
        first = me < 2
        pair = [0, 1] if first else [2, 3]
        halves = [2, 0] if me % 2 == 0 else [3, 1]
        assert seen["half"] == [halves.index(me), 2, halves.index(me), 2, 0, 1]
        assert seen["half total"] == [sum(halves), 2]
        assert seen["freed"] == halves
        assert seen["unregistered"] == [None, [], None, True]
        assert seen["place"] == [me, 4]
        # The first round has had four sets.
        assert seen["pair"] == [5, pair, me % 2, expected_total(2)]
        odd = me in (1, 3)
        assert seen["odd"] == [7, [1, 3] if odd else [], odd, expected_total(2) if odd else None]
        assert odd or f"Rank {me} is not a member of the provided process set" in seen["outside"]
        for text in seen["duplicates"]:
            assert text.startswith("InvalidArgumentError: Attempted to add a duplicate process set"), text
        assert "a process set has one or more ranks; this job has ranks 0 to 3" in seen["nobody"]
        assert seen["mixed"].startswith("MismatchError: Mismatched add_process_set"), seen["mixed"]
        assert "a communicator of MPI's ranks [2, 3]" in seen["mixed"]
        assert seen["removed"] == [True, True, None]
        assert seen["new"] == pair
        assert seen["still"] == expected_total(4)
        assert seen["launched"] == [me, expected_total(4)]
        assert seen["self"] == [0, 1, expected_total(1)]
        same, *others = seen["second"]
        assert same == []
        assert [len(told) for told in others] == [1, 1]
        assert all(told[0].startswith("this process is rank 0/1 of a job that runs") for told in others)
        assert "is MPI.COMM_NULL" in seen["null"]
        assert "inter-communicator" in seen["inter"]
        assert "leave rank= and size= out" in seen["both"]
        assert seen["hosts"] == [me % 2, 2, me // 2, 2]
        assert seen["across"][:2] == [expected_total(4), True]
        assert seen["across"][3] is (me in (0, 2)), seen["across"]  # few bytes: only the leaders speak
        if me != 3:
            assert seen["late"].startswith("TimeoutError: [communicator] rank" if me else "interrupted"), seen["late"]
        assert seen["after"] == expected_total(4)


# --- a launcher of one MPI, the library of another --------------------------------------------------------------------

WRONG_PAIR = f"""{SAY}
with rr.init() as world:
    alone = total()  # nothing is asked of MPI where it does not run
os.environ["RINGREDUCE_TRANSPORT"] = "mpi"
asked = caught(rr.init)
del os.environ["RINGREDUCE_TRANSPORT"]
from mpi4py import MPI
errors = [asked, caught(rr.init), caught(lambda: rr.init(comm=MPI.COMM_WORLD))]
say(world.rank, [alone, MPI.COMM_WORLD.size, *errors])
"""


def test_hydra_with_open_mpis_library_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    hydra, open_mpi = mpis.get("mpich-4"), mpis.get("openmpi-5")
    done = mpis.run(hydra.command(2, sys.executable, "-c", WRONG_PAIR), open_mpi.environment({FOLDER: str(tmp_path)}))
    assert done.returncode == 0, done.stdout
    for alone, size, *errors in said(tmp_path, 2):
        assert alone == expected_total(2)
        assert size == 1
        for error in errors:
            assert error.startswith("InvalidArgumentError: "), error
            words = ("MPICH's mpirun (Hydra) started 2 ranks", "loaded Open MPI 5.", "COMM_WORLD has size 1")
            assert [word for word in words if word not in error] == [], error
            assert "`ringrun --transport mpi -np 2 ...`" in error


# --- uneven data, every rank a host of its own ------------------------------------------------------------------------

UNEVEN = f"""{SAY}
with rr.init() as world:
    steps = [2, 5, 0][world.rank]
    seen = []
    for step in range(steps):
        large = rr.allreduce(np.full(5000, 10.0 ** world.rank), op=rr.Sum, name="large")
        small = rr.allreduce(np.array([10.0 ** world.rank]), op=rr.Sum)
        assert (large == large[0]).all()
        seen.append([large[0], small[0]])
    if world.rank == 1:
        seen.append(caught(lambda: rr.allgather(np.zeros(3))))
    seen.append(rr.join())
    seen.append(total())
    seen.append(caught(lambda: rr.allreduce(np.zeros(3), name=f"of {{world.rank}}")))
    seen.append(total())
say(world.rank, seen)
"""


def test_uneven_data_and_stuck_ranks_over_mpi(mpi: mpis.Mpi, tmp_path: Path) -> None:
    mpi.run(3, UNEVEN, extra={FOLDER: str(tmp_path), "RINGREDUCE_TRANSPORT": "mpi"})
    zero, one, two = said(tmp_path, 3)
    together, alone = [11.0, 11.0], [10.0, 10.0]
    assert zero[:2] == [together] * 2
    assert one[:5] == [together] * 2 + [alone] * 3
    assert "Allgather is not supported with Join at this time" in one[5]
    for rank, (last, right, stuck, after) in enumerate((zero[2:], one[6:], two)):
        assert last == 1
        assert right == after == expected_total(3)
        assert stuck.startswith("MismatchError: every rank is blocked and no operation can complete: rank 0 waits in")
        assert f"rank {rank} waits in allreduce 'of {rank}' for rank" in stuck


# --- Python that MPI calls ------------------------------------------------------------------------------------------

# The engine polls MPI while the message is under way, and MPI calls add() there: it has the MPI library's mutex, and
# waits for the GIL, when the last owner of the process set's links goes. (Of one of the ranks MPI may call add()
# elsewhere: in Iallreduce(), in Test() once the message has been taken, or not at all.)
OWN_OPERATION = f"""{SAY}
import threading
from mpi4py import MPI

called, drops = threading.Event(), threading.Event()
sys.setswitchinterval(60)  # no other thread has the GIL between drops.set() and the end of the links

def add(left, right, datatype):
    called.set()
    if threading.current_thread() is not threading.main_thread():
        drops.wait()
    np.add(np.frombuffer(left, float), np.frombuffer(right, float), out=np.frombuffer(right, float))

with rr.init() as world:
    pair = rr.add_process_set([0, 1])
    comm = MPI.COMM_WORLD.Split(world.rank // 2)
    seen = []
    if world.rank < 2:
        work = rr.allreduce_async(np.ones(4), op=rr.Sum, process_set=pair)
        seen.append(rr.synchronize(work).tolist())
    rr.remove_process_set(pair)
    if world.rank < 2:
        under_way = rr.send_async(np.ones(1 << 16), 1 - world.rank)
        mine, sums = np.full(3, 1.0 + world.rank), np.zeros(3)
        request = comm.Iallreduce(mine, sums, op=MPI.Op.Create(add, commute=True))
        while not called.wait(0.5) and not request.Test():
            pass
        drops.set()
        del work, pair
        seen.append(rr.recv(np.zeros(1 << 16), 1 - world.rank).sum())
        rr.synchronize(under_way)
        request.Wait()
        seen.append(sums.tolist())
say(world.rank, seen)
"""


def test_a_process_set_ends_while_mpi_calls_python(mpi: mpis.Mpi, tmp_path: Path) -> None:
    mpi.run(3, OWN_OPERATION, extra={FOLDER: str(tmp_path), "RINGREDUCE_TRANSPORT": "mpi"})
    assert said(tmp_path, 3) == [[[2.0] * 4, float(1 << 16), [3.0] * 3]] * 2 + [[]]


# --- what MPI does not do ---------------------------------------------------------------------------------------------

ENCRYPTED = f"""{SAY}
os.environ["RINGREDUCE_ENCRYPT"] = "on"
with rr.init() as world:
    seen = [total()]  # nothing leaves the host
os.environ["RINGREDUCE_TRANSPORT"] = "mpi"
seen.append(caught(rr.init))
os.environ["RINGREDUCE_TRANSPORT"] = "tcp"
with rr.init() as world:
    seen.append(total())
say(world.rank, seen)
"""


def test_encryption_that_mpi_does_not_do_is_an_error_on_every_rank(mpi: mpis.Mpi, tmp_path: Path) -> None:
    mpi.run(2, ENCRYPTED, extra={FOLDER: str(tmp_path)})
    for rank, (here, error, by_tcp) in enumerate(said(tmp_path, 2)):
        assert here == by_tcp == expected_total(2)
        assert error.startswith(f"UnavailableError: [communicator] rank {rank}/2: RINGREDUCE_ENCRYPT=on, and MPI")
        assert "RINGREDUCE_TRANSPORT=shm+tcp" in error
        assert "RINGREDUCE_SECRET_FILE" in error


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="trained")
def by_ringrun(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, str], list[Any]]:
    """The training example's command line, its variables, and its epochs under ringrun."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("trained")
    size = ("--model", "lenet", "--epochs", "2", "--batch-size", "32")
    program = [sys.executable, str(EXAMPLES / "torch_fashion_mnist.py"), *size, "--json"]
    environ = {"RINGREDUCE_DATA": str(write_data(folder / "small")), "OMP_NUM_THREADS": "1"}
    file = folder / "ringrun.json"
    command = [str(RINGRUN), "-np", "2", *program, str(file)]
    subprocess.run(command, env=clean_environment() | environ, check=True, timeout=HANG_S, stdout=subprocess.DEVNULL)
    return program, environ, untimed(file)


def untimed(file: Path) -> list[Any]:
    rows = json.loads(file.read_text())["epoch"]
    return [[row["epoch"], row["loss"], row["test_accuracy"]] for row in rows]


# By shared memory the MPI only starts the ranks.
@pytest.mark.parametrize("mpi", mpis.SAMPLED, indirect=True)
def test_training_gives_the_bits_that_ringrun_gives(
    mpi: mpis.Mpi, trained: tuple[list[str], dict[str, str], list[Any]], tmp_path: Path
) -> None:
    program, environ, expected = trained
    file = tmp_path / "mpirun.json"
    done = mpi.attempt(2, *program, str(file), extra=environ)
    assert done.returncode == 0, done.stdout
    assert untimed(file) == expected
    assert len(expected) == 2
    assert expected[0] != expected[1]


# --- a rank that is killed --------------------------------------------------------------------------------------------

KILLED = f"""{SAY}
import signal, time
if sys.argv[1] == "with mpi4py":
    from mpi4py import MPI
rr.init()
for _ in range(10):
    total()
if rr.rank() == 1:
    print("KILLED AT", time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    total()
"""


@pytest.mark.parametrize("how", ["alone", "with mpi4py"])
def test_a_killed_rank_ends_the_job(mpi: mpis.Mpi, how: str) -> None:
    program = [sys.executable, "-c", KILLED, how]
    output = mpis.end_of_a_killed_job(mpi.command(3, *program), mpi.environment())
    if mpi.vendor == "openmpi":
        assert "PeerLostError: [ringreduce rank" in output
        assert "lost rank 1" in output
    else:  # Hydra kills the others in the same instant; it says itself what it saw
        assert "Killed (signal 9)" in output


@pytest.mark.parametrize("mpi", mpis.SAMPLED, indirect=True)
@pytest.mark.parametrize("how", ["alone", "with mpi4py"])
def test_a_killed_rank_is_named_under_ringruns_mpirun(mpi: mpis.Mpi, how: str) -> None:
    ringrun = [sys.executable, "-m", "ringreduce.launch.ringrun", "--transport", "mpi", "-np", "3", "--grace", "1.5"]
    output = mpis.end_of_a_killed_job([*ringrun, sys.executable, "-c", KILLED, how], mpi.environment())
    # Python writes a traceback in pieces, and mpirun may put those of two ranks between each other.
    assert "PeerLostError" in output, output
    assert re.search(r"\[ringreduce rank [02]/3 [^]]*\] lost rank 1: its process has ended", output), output


# --- a rank that raises -----------------------------------------------------------------------------------------------

RAISED = f"""{SAY}
import time
if sys.argv[1] != "alone":
    from mpi4py import MPI
if sys.argv[1] == "each a host":
    os.environ["RINGREDUCE_TRANSPORT"] = "mpi"
world = rr.init()
for _ in range(10):
    total()
if world.rank == 1:
    print("KILLED AT", time.monotonic(), flush=True)
    with world:
        raise RuntimeError("rank 1 has had enough")
if world.rank == 2:
    time.sleep(1000)  # it calls nothing, so it hears nothing
while True:
    total()
"""


@pytest.mark.parametrize("mpi", mpis.SAMPLED, indirect=True)
@pytest.mark.parametrize("how", ["alone", "with mpi4py", "each a host"])
def test_an_exception_ends_the_job(mpi: mpis.Mpi, how: str) -> None:
    output = mpis.end_of_a_killed_job(mpi.command(3, sys.executable, "-c", RAISED, how), mpi.environment())
    assert "RuntimeError: rank 1 has had enough" in output
    if how != "alone":  # else mpirun sees that a process has failed, and ends the others
        raised = (
            r"PeerLostError: \[ringreduce rank [02]/3 on .*\] lost rank 1: RuntimeError: rank 1 has had enough \(<s"
        )
        assert re.search(raised, output)


# --- ringrun --transport mpi ------------------------------------------------------------------------------------------

LAUNCHED = f"""{SAY}
with rr.init() as world:
    seen = [world.size, total(), os.environ["RINGREDUCE_TRANSPORT"], os.environ["OMP_NUM_THREADS"]]
    seen += [os.environ["HOROVOD_TIMELINE_MARK"], os.environ.get("RINGREDUCE_RANK"), sys.argv[1]]
from mpi4py import MPI
say(world.rank, [*seen, MPI.COMM_WORLD.size, MPI.Get_library_version()])
"""


def test_ringrun_calls_the_mpirun_of_mpi4pys_library(mpi: mpis.Mpi, tmp_path: Path) -> None:
    ringrun = [sys.executable, "-m", "ringreduce.launch.ringrun", "--transport", "mpi", "--verbose"]
    extra = {
        "HOROVOD_TIMELINE_MARK": "forwarded",
        "RINGREDUCE_RANK": "7",
        "OMP_NUM_THREADS": "3",
        FOLDER: str(tmp_path),
    }
    done = mpis.run([*ringrun, "-np", "3", sys.executable, "-c", LAUNCHED, "one word"], mpi.environment(extra))
    assert done.returncode == 0, done.stdout
    transport = "auto"
    for *seen, version in said(tmp_path, 3):
        assert seen == [3, expected_total(3), transport, "3", "forwarded", None, "one word", 3]
        assert mpi.version.split()[-1] in version
    assert f"mpi4py loads {mpi.version} (" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ringrun: running "))
    assert os.path.realpath(line.split()[2]) == os.path.realpath(mpi.mpirun)

    failing = mpis.run([*ringrun, "-H", "localhost:2", "sh", "-c", "exit 7"], mpi.environment())
    assert failing.returncode == 7, failing.stdout


def test_open_mpi_as_root_carries_the_remedy() -> None:
    mpi = mpis.get("openmpi-5")
    if os.geteuid() != 0:
        pytest.skip("root: only root is refused")
    ringrun = [sys.executable, "-m", "ringreduce.launch.ringrun", "--transport", "mpi", "-np", "2"]
    environ = mpi.environment()
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        environ.pop(name)
    done = mpis.run([*ringrun, "true"], environ)
    assert done.returncode == 2
    assert "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in done.stdout
    assert "container" in done.stdout
    allowed = [*ringrun, "--mpi-args=--allow-run-as-root", "true"]
    done = mpis.run(allowed, environ)
    assert done.returncode == 0, done.stdout


def test_interrupting_ringrun_interrupts_the_ranks() -> None:
    mpi = mpis.get("mpich-5")
    ringrun = [sys.executable, "-m", "ringreduce.launch.ringrun", "--transport", "mpi", "-np", "2"]
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [*ringrun, "sh", "-c", "echo ready; exec sleep 1000"],
        env=mpi.environment({mpis.MARK: mark}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON_S) != 0
        finally:
            process.kill()
    deadline = time.monotonic() + SOON_S
    while mpis.marked(mark):
        assert time.monotonic() < deadline
        time.sleep(0.02)
