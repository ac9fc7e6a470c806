"""The package as a whole: imports go one way, public names are there, the wheel is small, generated pages are fresh."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from processes import completed
from ranks import clean_environment

import ringreduce
from ringreduce import _core, errors

ROOT = Path(__file__).resolve().parents[3]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "ringreduce"

# --- C++ ------------------------------------------------------------------------------------------------------------

LAYERS = [
    "base", "data", "os", "recorder", "gpu", "transport", "collective", "negotiation", "relay", "planner", "operations",
    "engine", "measure", "framework", "python",
]  # fmt: skip
"""Each may include those before it, but os and recorder, which are beside data, planner and operations, which are
beside relay, and framework, which is beside measure."""
MAY_INCLUDE = {layer: set(LAYERS[:position]) for position, layer in enumerate(LAYERS)}
MAY_INCLUDE["os"] = {"base"}
MAY_INCLUDE["recorder"] = {"base", "os"}
MAY_INCLUDE["planner"] -= {"relay"}
MAY_INCLUDE["operations"] -= {"relay"}
MAY_INCLUDE["framework"] -= {"measure"}


def test_folders_of_csrc_are_the_layers() -> None:
    folders = {path.name for path in CSRC.iterdir() if path.is_dir()}
    assert folders == set(MAY_INCLUDE)


def test_no_folder_of_csrc_has_more_than_22_files() -> None:
    folders = {path.parent for path in CSRC.rglob("*") if path.is_file()}
    counts = {str(folder.relative_to(CSRC)): sum(path.is_file() for path in folder.iterdir()) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > 22} == {}


def test_no_class_of_csrc_has_more_than_400_lines() -> None:
    """A header and the sources of its name are one class, or one idea."""
    lines: dict[str, int] = {}
    for path in (path for path in CSRC.rglob("*") if path.suffix in {".h", ".cc", ".cu", ".cuh"}):
        stem = str(path.relative_to(CSRC).with_suffix(""))
        lines[stem] = lines.get(stem, 0) + len(path.read_text().splitlines())
    assert {stem: count for stem, count in lines.items() if count > 400} == {}


@pytest.mark.parametrize("layer", MAY_INCLUDE)
def test_a_layer_includes_only_earlier_ones(layer: str) -> None:
    wrong = []
    for source in sorted(path for path in (CSRC / layer).rglob("*") if path.suffix in {".h", ".cc", ".cu"}):
        for header in re.findall(r'^\s*#\s*include\s+"([^"]+)"', source.read_text(), re.MULTILINE):
            assert (CSRC / header).is_file(), f"{source.name} includes {header}, which is not a path from csrc/"
            if header.split("/")[0] not in MAY_INCLUDE[layer] | {layer}:
                wrong.append(f"{layer}/{source.name} includes {header}")
    assert not wrong


# --- Python: errors -> state -> config -> job -> collectives -> basics -> common -> frameworks -> the edge ------------

BELOW_FRAMEWORKS = {"_core", "errors", "state", "config", "job", "collectives", "basics", "common", "__init__"}

MAY_IMPORT = {
    "_core": set(),
    "errors": set(),
    "no_core": set(),
    "exit_on_signal": set(),
    "horovod_variables": set(),
    "state": {"errors"},
    "config": {"_core", "errors", "horovod_variables", "state"},
    "gpu": {"_core", "errors", "state"},
    "timeline": {"errors"},
    "watch": {"_core", "errors", "exit_on_signal", "timeline"},
    "plan": {"_core", "errors", "config"},
    "job": {"_core", "errors", "state", "config", "timeline", "plan"},
    "job/failure": {"_core", "errors", "config", "job"},
    "collectives": {"_core", "errors", "state", "gpu", "job"},
    "features": {"_core", "errors", "state", "gpu", "job"},
    "basics": {"_core", "errors", "state", "config", "plan", "job", "job/failure", "collectives"},
    "common": {"_core", "errors", "state", "config", "features", "job", "collectives", "basics"},
    "api": {"gpu", "collectives", "common"},
    "__init__": {"no_core"},
    "torch/tracing": set(),
    "torch/uncompiled": {"torch/tracing"},
    "torch/profiling": {"_core", "torch/tracing"},
    "torch/cuda": {"_core", "errors"},
    "torch/tensors": {"_core", "errors", "job", "collectives", "torch/cuda"},
    "torch/submission": {"_core", "errors", "job", "collectives", "torch/cuda", "torch/profiling", "torch/tensors"},
    "torch/gradient_reduction": {
        "_core",
        "errors",
        "job",
        "collectives",
        "torch/profiling",
        "torch/tensors",
        "torch/submission",
    },
    "torch/alike": set(),
    "torch/sparse_sum": {"torch/alike"},
    "torch/powersgd": {"_core", "errors", "collectives", "torch/gradient_reduction", "torch/alike"},
    "torch/quantization": {
        "_core",
        "errors",
        "collectives",
        "torch/profiling",
        "torch/tensors",
        "torch/gradient_reduction",
        "torch/alike",
    },
}
"""Room, or file beside rooms (each of those in ringreduce/ and ringreduce/torch/): what it may import of ringreduce
when it is imported itself. "__init__" stands for the public names, which ringreduce/__init__.py gets from api.py on
first use."""

_TENSORS = {
    f"torch/{name}"
    for name in ("alike", "cuda", "gradient_reduction", "profiling", "sparse_sum", "submission", "tensors", "tracing")
}
MAY_IMPORT["torch/compression"] = {"job", "collectives", "common"} | {
    f"torch/{name}" for name in ("alike", "gradient_reduction", "powersgd", "quantization", "tracing")
}
MAY_IMPORT["torch/collectives"] = BELOW_FRAMEWORKS | _TENSORS | {"torch/compression"}
MAY_IMPORT["torch/sync_batch_norm"] = BELOW_FRAMEWORKS | _TENSORS
MAY_IMPORT["torch/functions"] = BELOW_FRAMEWORKS | _TENSORS | {"torch/collectives"}
MAY_IMPORT["torch/mpi_ops"] = BELOW_FRAMEWORKS | _TENSORS | {"torch/collectives", "torch/compression"}
MAY_IMPORT["torch/optimizer"] = MAY_IMPORT["torch/mpi_ops"] | {"torch/functions"}
MAY_IMPORT["torch/local_sgd"] = MAY_IMPORT["torch/optimizer"] | {"torch/optimizer"}
MAY_IMPORT["torch/elastic"] = BELOW_FRAMEWORKS | {"torch/mpi_ops"}
MAY_IMPORT["torch/distributed"] = BELOW_FRAMEWORKS | {"job/failure", "plan"}
MAY_IMPORT["torch/distributed"] |= {"torch/profiling", "torch/cuda", "torch/tensors", "torch/sparse_sum"}
MAY_IMPORT["torch/lightning"] = BELOW_FRAMEWORKS
MAY_IMPORT["torch/__init__"] = BELOW_FRAMEWORKS | {name for name in MAY_IMPORT if name.startswith("torch/")}
MAY_IMPORT["tensorflow"] = BELOW_FRAMEWORKS
MAY_IMPORT["jax"] = BELOW_FRAMEWORKS
MAY_IMPORT["keras"] = BELOW_FRAMEWORKS | {"torch/__init__", "torch/compression", "tensorflow", "jax"}
MAY_IMPORT["tensorflow/keras"] = MAY_IMPORT["tensorflow"] | {"tensorflow", "keras"}
MAY_IMPORT["compat"] = set()
MAY_IMPORT["launch/python"] = set()
MAY_IMPORT["launch/command_line"] = {"errors", "horovod_variables", "job", "launch/python"}
_UNDER_LAUNCH = {"launch/python", "launch/command_line"}
MAY_IMPORT["launch"] = {"errors", "horovod_variables", "job", "job/failure", "compat"} | _UNDER_LAUNCH
MAY_IMPORT["compat/path"] = {"features", "job", "common", "compat", "launch"}
MAY_IMPORT["lab"] = {"errors", "exit_on_signal", "launch"} | _UNDER_LAUNCH
MAY_IMPORT["bench"] = BELOW_FRAMEWORKS | {"exit_on_signal", "launch", "plan", "timeline", "lab"} | _UNDER_LAUNCH
MAY_IMPORT["tuning"] = BELOW_FRAMEWORKS | {"launch", "plan", "timeline", "bench"} | _UNDER_LAUNCH
MAY_IMPORT["doctor"] = BELOW_FRAMEWORKS | {"horovod_variables", "launch", "bench", "plan"} | _UNDER_LAUNCH
MAY_IMPORT["cli"] = {"errors"}
MAY_IMPORT["__main__"] = {"cli"}

MAY_IMPORT_LATER = {
    "job": {"collectives"},  # the sum in collective_json.py
    "torch/tracing": {"torch/uncompiled"},  # loads torch._dynamo
    "tensorflow": {"tensorflow/keras"},  # its DistributedOptimizer() of a Keras optimizer
    "launch": {"_core", "__init__", "doctor"},  # _core: its version, which all hosts must have
    "bench": {"torch/__init__"},
    "cli": {"__init__", "launch", "bench", "tuning", "doctor", "timeline", "watch", "lab"},
}
"""What functions may import besides, when they are called."""

FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "jaxlib", "cupy", "mpi4py"}
OWN_FRAMEWORKS = {
    "torch": {"torch"},
    "tensorflow": {"tensorflow", "keras"},
    "keras": {"tensorflow", "keras", "torch", "jax"},
    "jax": {"jax"},
}
# Within functions: where a job is on several hosts, or MPI is asked for by name; torch: for the store of its torchrun.
LAZY = {"job": {"mpi4py", "torch"}}
EDGE = {"compat", "launch", "bench", "tuning", "doctor", "cli"}


class Import(NamedTuple):
    file: str  # "torch/optimizer/buckets"
    where: str
    module: str  # "torch.nn", "ringreduce.torch", ...
    lazy: bool  # inside a function


def room_of(name: str) -> str | None:
    """The longest row of MAY_IMPORT that a file's path without its suffix begins with."""
    parts = name.split("/")
    heads = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((head for head in heads if head in MAY_IMPORT), None)


def file_of(module: str) -> str | None:
    """The file of a module of ours, as in Import.file; None where there is no such module."""
    path = "/".join(module.split(".")[1:])
    if path == "_core" or (path and (PACKAGE / f"{path}.py").is_file()):
        return path
    package = f"{path}/__init__".lstrip("/")
    return package if (PACKAGE / f"{package}.py").is_file() else None


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(node: ast.AST, lazy: bool = False) -> Iterator[tuple[str, bool, int]]:
    """(module, lazy, line) of every import that runs; in `from a import b`, a.b where that is a module of ours."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, lazy, child.lineno
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: imports are written out in full"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                is_ours = inner.startswith("ringreduce.") and file_of(inner) is not None
                yield inner if is_ours else str(child.module), lazy, child.lineno
        yield from imported(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def all_imports() -> list[Import]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).with_suffix("").as_posix()
        for module, lazy, line in imported(ast.parse(path.read_text())):
            found.append(Import(file, f"{path.relative_to(ROOT)}:{line} {module}", module, lazy))
    return found


def test_every_python_file_has_a_room_and_every_room_has_files() -> None:
    rooms = {path: room_of(path.relative_to(PACKAGE).with_suffix("").as_posix()) for path in PACKAGE.rglob("*.py")}
    assert not [path for path, room in rooms.items() if room is None], "to be placed in MAY_IMPORT"
    assert set(rooms.values()) | {"_core"} == set(MAY_IMPORT)


def test_rooms_of_python_are_in_order() -> None:
    earlier: set[str] = set()
    for room, below in MAY_IMPORT.items():
        assert below <= earlier, f"{room} may import {below - earlier}, which come later"
        earlier.add(room)
    assert set(MAY_IMPORT_LATER).union(*MAY_IMPORT_LATER.values()) <= earlier


def test_a_room_imports_only_what_its_row_allows() -> None:
    wrong = []
    for item in all_imports():
        if item.module.split(".")[0] != "ringreduce":
            continue
        room, target = room_of(item.file), room_of(file_of(item.module) or item.module)
        assert room is not None
        allowed = MAY_IMPORT[room] | {room} | (MAY_IMPORT_LATER.get(room, set()) if item.lazy else set())
        if target not in allowed:
            wrong.append(f"{item.where} ({room} -> {target})")
    assert not wrong


def test_only_framework_rooms_import_frameworks() -> None:
    wrong = []
    for item in all_imports():
        top, room = item.module.split(".")[0], item.file.split("/")[0]
        lazily = item.lazy and (room in EDGE or top in LAZY.get(room, set()))
        allowed = top in OWN_FRAMEWORKS.get(room, set()) or lazily
        if top in FRAMEWORKS and not allowed:
            wrong.append(item.where)
    assert not wrong


# --- importing --------------------------------------------------------------------------------------------------------


def run_python(code: str) -> str:
    return completed([sys.executable, "-c", code], check=True).stdout


def test_import_pulls_in_numpy_and_the_standard_library_only() -> None:
    code = "import sys, numpy; before = set(sys.modules); import ringreduce.api; print(*(set(sys.modules) - before))"
    tops = {name.split(".")[0] for name in run_python(code).split()}
    assert tops <= set(sys.stdlib_module_names) | {"numpy", "ringreduce"}


@pytest.mark.parametrize(
    ("package", "framework", "install"),
    [
        ("torch", "torch", "'ringreduce[torch]'"),
        ("tensorflow", "tensorflow", "'ringreduce[tensorflow]'"),
        ("tensorflow.keras", "tensorflow", "'ringreduce[tensorflow]'"),
        ("keras", "keras", "keras tensorflow (or torch, or jax, for Keras's backend)"),
        ("jax", "jax", "'ringreduce[jax]'"),
    ],
)
def test_a_package_without_its_framework_says_what_to_install(package: str, framework: str, install: str) -> None:
    code = f"import sys; sys.modules[{framework!r}] = None; import ringreduce.{package}"
    done = completed([sys.executable, "-c", code])
    needs = f"ringreduce.{package.split('.')[0]} needs {framework}; that is not installed: pip install {install}"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {needs}"


SLOW = {"asyncio", "concurrent", "ctypes", "email", "hashlib", "hmac", "http", "logging", "multiprocessing", "ssl"}
SLOW |= {"subprocess", "tempfile", "unittest", "xml"}


def test_import_adds_little_to_numpy() -> None:
    """Modules that take milliseconds are loaded by who needs them. 64 modules were there when this was written."""
    code = "import sys, numpy; before = set(sys.modules); import ringreduce.api; print(*(set(sys.modules) - before))"
    added = run_python(code).split()
    assert not SLOW & {name.split(".")[0] for name in added}
    assert len(added) < 80, sorted(added)


def test_the_launcher_starts_without_numpy_and_core() -> None:
    code = """if True:
        import sys
        import ringreduce.launch.ringrun as ringrun
        assert ringrun.main(["-np", "2", "true"]) == 0
        try:
            ringrun.main(["--help"])
        except SystemExit:
            print(*sys.modules)
    """
    loaded = set(run_python(code).split())
    assert "ringreduce.launch.supervise" in loaded
    assert not loaded & {"numpy", "ringreduce._core", "ringreduce.api"}


def test_public_names_are_there_when_they_are_used() -> None:
    code = """if True:
        import ringreduce, sys
        assert "numpy" not in sys.modules
        ringreduce.join = "replaced"
        assert "allreduce" in dir(ringreduce) and "run" in dir(ringreduce)
        assert ringreduce.config.describe() and ringreduce.__version__
        assert ringreduce.allreduce is vars(ringreduce)["allreduce"] is ringreduce.api.allreduce
        assert not hasattr(ringreduce, "no_such_name")
        from ringreduce import *
        assert join == "replaced"
        print(*sorted(set(ringreduce.__all__) - globals().keys()))
    """
    assert run_python(code) == "\n"


def test_every_public_name_resolves_and_is_documented() -> None:
    assert len(set(ringreduce.__all__)) == len(ringreduce.__all__)
    values = {name: getattr(ringreduce, name) for name in ringreduce.__all__}
    called = {name: value for name, value in values.items() if callable(value)}
    assert not [name for name, value in called.items() if not value.__doc__]
    constants = {name for name in values if name not in called and not name.startswith("__")}
    source = "\n".join(
        path.read_text() for folder in (".", "job", "collectives") for path in (PACKAGE / folder).glob("*.py")
    )
    documented = re.findall(r'^(\w+)(?:: [^=\n]+)? = [^\n]+\n"""', source, re.MULTILINE)
    assert not constants - set(documented)


def test_version_is_written_once() -> None:
    match = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match
    assert ringreduce.__version__ == _core.__version__ == match.group(1)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_every_error_class_of_the_core_exists_in_python_with_the_same_base() -> None:
    table = (CSRC / "base" / "errors.h").read_text().split("#define RR_ERRORS(X)")[1].split("class Error")[0]
    rows = re.findall(r"\bX\((\w+), (\w+)\)", table)
    assert len(rows) >= 8
    python_name = {"InternalError": "HorovodInternalError"}
    for name, base in rows:
        cls = getattr(errors, python_name.get(name, name))
        assert issubclass(cls, getattr(errors, python_name.get(base, base)))
        assert getattr(ringreduce, cls.__name__) is cls
    native = {python_name.get(name, name) for name, _ in rows} | {"Error"}
    assert {name for name, value in vars(errors).items() if isinstance(value, type)} == native


def test_knobs_page_is_up_to_date() -> None:
    sys.path.insert(0, str(ROOT / "tests" / "tools"))
    try:
        import knobs
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / "reference" / "knobs.md").read_text() == knobs.render(), "run `make docs`"


# --- the sources and the wheel ----------------------------------------------------------------------------------------


def test_the_source_archive_has_all_that_the_build_reads(tmp_path: Path) -> None:
    config = tmp_path / "build.cfg"
    config.write_text(f"[egg_info]\negg_base = {tmp_path}\n")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        env={**os.environ, "DIST_EXTRA_CONFIG": str(config)},
    )
    (path,) = tmp_path.glob("ringreduce-*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in CSRC.rglob("*") if path.is_file()}
    assert any(name.endswith(".cu") for name in sources)
    assert sources | {"CMakeLists.txt", "setup.py", "pyproject.toml"} <= inside


def test_wheel_is_small_requires_numpy_only_and_works_when_installed(tmp_path: Path) -> None:
    # Compiled objects are shared with the editable build; what goes into the wheel is collected afresh in tmp_path.
    config = tmp_path / "build.cfg"
    config.write_text(f"[build]\nbuild_base = {tmp_path}/build\n")
    (ROOT / "build").mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run(
        ["flock", str(ROOT / "build" / "lock"), *pip, str(ROOT)],
        check=True,
        env={**os.environ, "DIST_EXTRA_CONFIG": str(config)},
    )

    (wheel,) = tmp_path.glob("ringreduce-*.whl")
    assert wheel.stat().st_size < 5_000_000
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        (metadata,) = (name for name in inside if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    required = [text for text in fields.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert [re.split(r"[<>=!~ ]", text)[0] for text in required] == ["numpy"]
    hook = "ringreduce-as-horovod.pth"  # tests/python/horovod/test_compat.py runs it
    assert {name.split("/")[0] for name in inside} == {"ringreduce", metadata.split("/")[0], hook}
    assert "ringreduce/py.typed" in inside
    assert "ringreduce/watch/page.html" in inside
    assert "ringreduce/_core.pyi" in inside
    assert any(re.fullmatch(r"ringreduce/_core\..*\.so", name) for name in inside)
    assert "ringreduce/_tensorflow.so" in inside
    written = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")}
    assert {name for name in inside if name.endswith(".py")} == written

    python = install(wheel, tmp_path / "environment")
    checkout = unbuilt_checkout(tmp_path / "checkout")
    (tmp_path / "elsewhere").mkdir()
    for folder in (checkout, tmp_path / "elsewhere"):
        check_commands(python.parent, folder, checkout / "examples" / "hello.py")
    check_programs_in_the_source_tree(python, checkout)
    check_that_a_core_for_another_python_is_named(python)


def install(wheel: Path, environment: Path) -> Path:
    """A new virtual environment with the wheel and this one's NumPy. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, env=installed_environment())
    (site,) = environment.glob("lib/python*/site-packages")
    for name in ("numpy", "numpy.libs"):
        beside = Path(np.__file__).parents[1] / name
        if beside.exists():
            (site / name).symlink_to(beside)
    return python


def unbuilt_checkout(root: Path) -> Path:
    """The source tree as git clones it: without a compiled core."""
    shutil.copytree(PACKAGE, root / "ringreduce", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(ROOT / "examples", root / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "csrc").mkdir()
    return root


def installed_environment() -> dict[str, str]:
    """No launcher's variables, and nothing that leads to the package under test but its installation."""
    return {name: value for name, value in clean_environment().items() if name != "PYTHONPATH"}


def run_installed(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environ = installed_environment()
    words = list(map(str, command))
    return completed(words, env=environ, cwd=folder)


def check_commands(scripts: Path, folder: Path, hello: Path) -> None:
    """The README's commands, in this working directory."""
    bench = run_installed(folder, scripts / "ringreduce", "bench", "allreduce", "-np", "2", "--sizes", "8")
    assert bench.returncode == 0, bench.stderr
    assert "Out of bounds values : 0 OK" in bench.stdout
    beside = ("--vs", "gloo", "--rounds", "1", "--sizes", "8")
    versus = run_installed(folder, scripts / "ringreduce", "bench", "allreduce", "-np", "2", *beside)
    assert versus.returncode == 0, versus.stderr
    assert "failed" not in versus.stdout
    doctor = run_installed(folder, scripts / "ringreduce", "doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert re.search("2 ranks, .* 0 wrong", doctor.stdout), doctor.stdout
    greeting = run_installed(folder, scripts / "ringrun", "-np", "2", scripts / "python", hello)
    assert greeting.stdout.count(" of 2: [3. 3. 3. 3.]") == 2, greeting.stderr


def check_programs_in_the_source_tree(python: Path, checkout: Path) -> None:
    """They use the installed package, which the tree hides. Without one the tree says what it is."""
    (checkout / "train.py").write_text(
        "import ringreduce.config\nprint(ringreduce.__file__, ringreduce.config.__file__)\n"
    )
    started = run_installed(checkout, python.parent / "ringrun", "-np", "1", python, "train.py")
    (site,) = python.parents[1].glob("lib/python*/site-packages/ringreduce")
    assert started.stdout.split()[-2:] == [f"{site}/__init__.py", f"{site}/config.py"], started.stderr
    refused = run_installed(checkout, python, "-S", "-c", "import ringreduce")
    assert "the source tree, whose core is not built, and no other ringreduce is installed" in refused.stderr
    assert f"-m pip install {checkout}" in refused.stderr


def check_that_a_core_for_another_python_is_named(python: Path) -> None:
    """Ends the installation: its core gets another name."""
    (core,) = python.parents[1].glob("lib/python*/site-packages/ringreduce/_core.*.so")
    core.rename(core.with_name("_core.cpython-39-x86_64-linux-gnu.so"))
    refused = run_installed(python.parent, python, "-c", "import ringreduce")
    assert "built for another Python (_core.cpython-39-x86_64-linux-gnu.so)" in refused.stderr
    assert f"{python} -m pip install" in refused.stderr
