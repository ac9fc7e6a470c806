"""ringreduce.compat: the name horovod finds ringreduce, in one process, under ringrun, and in what a program starts."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from example_runs import RINGRUN
from processes import completed

from ringreduce import compat

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(compat.FOLDER)

MODULES = [
    "horovod.common",
    "horovod.common.basics",
    "horovod.common.elastic",
    "horovod.common.exceptions",
    "horovod.common.process_sets",
    "horovod.common.util",
    "horovod.runner",
    "horovod.runner.common.util.env",
    "horovod.runner.util.threads",
]
TORCH = [
    "horovod.torch",
    "horovod.torch.compression",
    "horovod.torch.elastic",
    "horovod.torch.elastic.sampler",
    "horovod.torch.elastic.state",
    "horovod.torch.functions",
    "horovod.torch.mpi_ops",
    "horovod.torch.optimizer",
    "horovod.torch.sync_batch_norm",
]


def python(*lines: str, status: int = 0, cwd: Path | None = None, **environ: str) -> str:
    """What a program prints, with another environment; on a status other than the expected one, the test fails."""
    variables = {name: value for name, value in os.environ.items() if name != compat.VARIABLE} | environ
    command = [sys.executable, "-c", "\n".join(lines)]
    done = completed(command, env=variables, cwd=cwd)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def switched_on() -> dict[str, str]:
    """The variables by which ringrun --as-horovod switches the name on."""
    environ = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    compat.switch_on(environ)
    return environ


def test_modules_are_found_and_are_ringreduces_own() -> None:
    python(
        "from ringreduce import compat",
        "compat.install()",
        "compat.install()",
        "import importlib, horovod, horovod.common.basics, ringreduce, ringreduce.common.basics as ours",
        "assert horovod.common.basics is ours and ours.__spec__.name == 'ringreduce.common.basics'",
        "assert horovod.__version__ == '0.28.1'",
        f"for name in {MODULES}: assert importlib.import_module(name) is importlib.sys.modules[name], name",
        "from horovod.common.exceptions import HorovodInternalError",
        "assert HorovodInternalError is ringreduce.HorovodInternalError",
        "from horovod.common import util, process_sets",
        "assert util.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]] and not util.gloo_built()",
        "assert process_sets.global_process_set is ringreduce.global_process_set",
    )


def test_modules_of_torch() -> None:
    pytest.importorskip("torch")
    python(
        "import importlib, horovod.torch as hvd, ringreduce.torch",
        "assert hvd is ringreduce.torch",
        f"for name in {TORCH}:",
        "    module = importlib.import_module(name)",
        "    assert module is importlib.import_module('ringreduce' + name[7:]), name",
        "    assert module.__spec__.name == module.__name__ == 'ringreduce' + name[7:]",
        **switched_on(),
    )


def test_what_ringreduce_has_not_is_not_found() -> None:
    python(
        "from ringreduce import compat",
        "compat.install()",
        "import importlib.util",
        "assert importlib.util.find_spec('horovod.common') is not None",
        "for name in ('horovod.spark', 'horovod.ray', 'horovod.mxnet', 'horovod.common.nothing'):",
        "    assert importlib.util.find_spec(name) is None, name",
        "import horovod.spark",
        status=1,
    )


def test_children_have_the_name_too() -> None:
    text = python(
        "import subprocess, sys",
        "subprocess.run([sys.executable, '-c', 'import horovod; print(horovod.__file__)'], check=True)",
        **switched_on(),
    )
    assert Path(text.strip()) == FOLDER / "horovod" / "__init__.py"


def test_off_is_off() -> None:
    # A process of its own: another test may have given this one a module of the name.
    if python("import importlib.util", "print(importlib.util.find_spec('horovod') is None)") != "True\n":
        pytest.skip("Horovod is installed")
    assert "No module named 'horovod'" in python("import horovod", status=1)


@pytest.mark.parametrize("route", ["install", "environment"])
def test_a_real_horovod_is_not_hidden_unasked(tmp_path: Path, route: str) -> None:
    real = tmp_path / "horovod" / "__init__.py"
    real.parent.mkdir()
    real.write_text("__version__ = 'real'\n")
    path = os.pathsep.join(entry for entry in (str(tmp_path), os.environ.get("PYTHONPATH")) if entry)
    environ = {"PYTHONPATH": path}
    if route == "environment":
        compat.switch_on(environ)
    ask = [] if route == "environment" else ["from ringreduce import compat", "compat.install()"]
    text = python(*ask, "import horovod", status=1, **environ)
    assert f"installed at {real}" in text
    assert "RuntimeError" in text  # not an ImportError, which scripts catch to go on with one rank
    forced = python(*ask, "import horovod", "print(horovod.__file__)", **{**environ, compat.VARIABLE: "force"})
    assert Path(forced.strip()) == FOLDER / "horovod" / "__init__.py"
    late = python(
        "import horovod", "from ringreduce import compat", "compat.install(force=True)", status=1, PYTHONPATH=path
    )
    assert "already imported" in late


def test_switching_on_keeps_what_is_there() -> None:
    environ = {"PYTHONPATH": "/a:/b", compat.VARIABLE: "force"}
    compat.switch_on(environ)
    compat.switch_on(environ)
    assert environ == {"PYTHONPATH": f"{compat.FOLDER}:/a:/b", compat.VARIABLE: "force"}


@pytest.mark.parametrize("kind", ["INSTALLED", "EDITABLE"])
def test_the_file_that_python_reads_at_its_start(kind: str, tmp_path: Path) -> None:
    """The wheel puts setup.py's line into site-packages, as ringreduce-as-horovod.pth; an editable one has its own."""
    (tmp_path / "ringreduce-as-horovod.pth").write_text(line_of_setup(kind))
    if kind == "INSTALLED":
        (tmp_path / "ringreduce").symlink_to(ROOT / "ringreduce")
    path = "" if kind == "INSTALLED" else str(ROOT)  # in place of the other file that an editable installation has
    start = ["import site, sys", f"site.addsitedir({str(tmp_path)!r})"]
    found = [*start, "import horovod", "print(horovod.__file__)"]
    text = python(*found, PYTHONPATH=path, cwd=tmp_path, **{compat.VARIABLE: "1"})
    assert text.strip().endswith("ringreduce/compat/path/horovod/__init__.py")
    off = [*start, "assert not any('compat' in entry for entry in sys.path)"]
    python(*off, PYTHONPATH=path, cwd=tmp_path, **{compat.VARIABLE: "0"})
    python(*off, PYTHONPATH=path, cwd=tmp_path)


def line_of_setup(kind: str) -> str:
    """BuildPython.LINE of setup.py for this kind of installation, without a call of setup()."""
    names: dict[str, Any] = {"__file__": str(ROOT / "setup.py")}
    exec((ROOT / "setup.py").read_text().replace("\nsetup(\n", "\ndict(\n"), names)
    command = names["BuildPython"]
    line: str = command.LINE.format(getattr(command, kind))
    return line


def test_ringrun_as_horovod(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import horovod\n"
        "from horovod.runner.common.util.env import get_env_rank_and_size\n"
        "from horovod.common.basics import HorovodBasics\n"
        "hvd = HorovodBasics()\n"
        "assert get_env_rank_and_size()[1] == 2\n"
        "hvd.init(process_sets=[[0]])\n"
        "assert hvd._get_process_set_ids_and_ranks() == {0: [0, 1], 1: [0]}\n"
        "print('rank', hvd.rank(), 'of', hvd.size(), get_env_rank_and_size()[0])\n"
    )
    command = [str(RINGRUN), "--as-horovod", "-np", "2", sys.executable, str(script)]
    done = completed(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 0", "rank 1 of 2 1"]


def test_a_place_on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2, "CROSS_RANK": 1, "CROSS_SIZE": 2}
    for name, value in place.items():
        monkeypatch.setenv(f"RINGREDUCE_{name}", str(value))
    text = python(
        "from ringreduce import compat",
        "compat.install()",
        "from horovod.runner.common.util.env import get_env_rank_and_size",
        "print(get_env_rank_and_size())",
    )
    assert text == "(3, 4)\n"


def test_horovod_run() -> None:
    text = python(
        "from ringreduce import compat",
        "compat.install()",
        "import horovod, os, warnings",
        "warnings.simplefilter('error')",
        "assert horovod.run(max, (3, 4)) == [4]",
        "assert horovod.run(max, (3, 4), num_proc=2, hosts='localhost:2') == [4, 4]",
        "assert horovod.run(os.getenv, ('RINGREDUCE_INIT_TIMEOUT',), np=1, start_timeout=7) == ['7']",
        "for arguments in ({'hosts': 'far.example:2'}, {'min_num_proc': 1}, {'use_gloo': True}):",
        "    try: horovod.run(max, (3, 4), **arguments)",
        "    except (RuntimeError, RuntimeWarning) as error: print(type(error).__name__, error)",
    )
    lines = text.splitlines()
    assert [line.split()[0] for line in lines] == ["UnavailableError", "UnavailableError", "RuntimeWarning"], text
    assert "far.example" in lines[0]
    assert "min_num_proc" in lines[1]
    assert "use_gloo" in lines[2]


TRAIN = """
def train():
    import horovod
    import os

    from horovod.common.basics import HorovodBasics

    with HorovodBasics().init() as world:
        return world.size, horovod.__file__, os.environ["RINGREDUCE_AS_HOROVOD"], os.environ["PYTHONPATH"]
"""


@pytest.mark.parametrize("call", ["horovod.run", "ringreduce.run"])
@pytest.mark.parametrize("forced", [False, True])
def test_the_ranks_of_run_have_the_name_that_install_has_given(tmp_path: Path, call: str, forced: bool) -> None:
    (tmp_path / "training.py").write_text(TRAIN)
    if forced:
        (tmp_path / "horovod").mkdir()
        (tmp_path / "horovod" / "__init__.py").write_text("raise SystemExit('the package that is hidden')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    text = python(
        "from ringreduce import compat",
        f"compat.install({forced})",
        "import horovod, ringreduce, training",
        f"answers = {call}(training.train, num_proc=2, env={{'PYTHONPATH': {path!r}}})",
        "print(*answers, sep='\\n')",
        PYTHONPATH=path,
    )
    for_children = ("force" if forced else "1", f"{FOLDER}{os.pathsep}{path}")
    assert text.splitlines() == [str((2, str(FOLDER / "horovod" / "__init__.py"), *for_children))] * 2


def test_the_ranks_of_run_do_without_the_name_where_the_caller_says_so(tmp_path: Path) -> None:
    (tmp_path / "looking.py").write_text(
        "import importlib.util\ndef look():\n    return importlib.util.find_spec('horovod') is not None\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    text = python(
        "from ringreduce import compat",
        "compat.install(True)",
        "import ringreduce, looking",
        f"print(ringreduce.run(looking.look, num_proc=1, env={{'PYTHONPATH': {path!r}, {compat.VARIABLE!r}: '0'}}))",
        PYTHONPATH=path,
    )
    assert text == "[False]\n"
