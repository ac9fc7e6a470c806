"""Runs ringreduce.torch on other versions of torch than the one that is installed: `make test-torch-versions`.

    python tests/tools/torch_versions.py [VERSION ...]     # default: the oldest >= 2.1 that pip offers, and the newest

Each version gets a virtual environment in build/torch-versions, with what pip's own index offers and without its CUDA
packages: a wheel that was linked to CUDA libraries gets empty stand-ins for them, which is enough to load it and to run
on the CPU. ringreduce is used from this tree. Two ranks run torch_smoke.py. Nothing is left but a line of output each.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "torch-versions"
OLDEST = (2, 1)
NUMPY_2 = (2, 3)  # the first torch whose wheels work with NumPy 2
PURE = ["filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "setuptools"]
CUDA = re.compile(r"lib(cu|nv|nccl)")
RANKS = 2
LIMIT_S = 300


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def offered() -> list[str]:
    """The oldest and the newest version that pip offers to this Python."""
    text = run(sys.executable, "-m", "pip", "index", "versions", "torch")
    versions = re.search(r"Available versions: (.*)", text)
    assert versions, text
    usable = sorted((v for v in versions.group(1).split(", ") if number(v) >= OLDEST and "+" not in v), key=number)
    return [usable[0], usable[-1]]


def undefined(library: Path) -> dict[str, set[tuple[str, str]]]:
    """What a library wants of CUDA libraries: {soname: {(symbol, version)}}; symbols without a version are under ""."""
    dynamic = run("readelf", "-dW", library)
    wanted: dict[str, set[tuple[str, str]]] = {
        soname: set() for soname in re.findall(r"NEEDED.*\[(.*?)\]", dynamic) if CUDA.match(soname)
    }
    versions: dict[str, str] = {}
    for soname, entries in re.findall(r"File: (\S+)  Cnt: \d+\n((?:.*Name: .*\n)*)", run("readelf", "-VW", library)):
        versions.update((version, soname) for version in re.findall(r"Name: (\S+)", entries))
    for name, version in re.findall(r" UND (\w+)(?:@(\S+))?", run("readelf", "--dyn-syms", "-W", library)):
        soname = versions.get(version, "")
        if (version and soname in wanted) or (not version and re.match(r"_*(cu|nccl|nv)", name)):
            wanted.setdefault(soname, set()).add((name, version))
    return wanted


def stand_in(folder: Path) -> int:
    """Puts a library in place of each CUDA library that is wanted and not there; every function in it fails."""
    wanted: dict[str, set[tuple[str, str]]] = {}
    for library in folder.glob("*.so*"):
        for soname, symbols in undefined(library).items():
            wanted.setdefault(soname, set()).update(symbols)
    loose = wanted.pop("", set())
    missing = [soname for soname in sorted(wanted) if not (folder / soname).exists()]
    for soname in missing:
        symbols = wanted[soname] or loose
        names = sorted({name for name, _ in symbols})
        script = "".join(
            f"{version or 'RR_NONE'} {{ {' '.join(name + ';' for name, of in sorted(symbols) if of == version)} }};\n"
            for version in sorted({version for _, version in symbols if version})
        )
        source, exports = folder / "stand_in.c", folder / "stand_in.map"
        source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in names))
        exports.write_text(script or "{ global: *; };\n")
        options = ["-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{soname},--version-script={exports}"]
        run("gcc", *options, "-o", folder / soname, source)
        source.unlink()
        exports.unlink()
    return len(missing)


def install(version: str) -> Path:
    """A virtual environment with that torch; returns its interpreter."""
    home = FOLDER / version
    shutil.rmtree(home, ignore_errors=True)
    run(sys.executable, "-m", "venv", home)
    python = home / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(*pip, "numpy<2" if number(version) < NUMPY_2 else "numpy", *PURE)
    found = FOLDER / "wheels"
    run(*pip, "--no-deps", *(["--find-links", found] if found.exists() else []), f"torch=={version}")
    (library,) = home.glob("lib/python3*/site-packages/torch/lib")
    print(f"torch {version}: {stand_in(library)} stand-ins for CUDA libraries", flush=True)
    return python


def smoke(python: Path) -> str:
    """Runs torch_smoke.py on two ranks. Raises SystemExit with its output if one of them fails."""
    place = f"torch-versions-{os.getpid()}-{secrets.token_hex(8)}:{secrets.token_hex(32)}"
    environ = {**os.environ, "RINGREDUCE_RENDEZVOUS": place, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = []
    for rank in range(RANKS):
        where = {"RANK": rank, "SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_SIZE": RANKS, "CROSS_RANK": 0, "CROSS_SIZE": 1}
        mine = environ | {f"RINGREDUCE_{name}": str(value) for name, value in where.items()}
        command = [str(python), str(Path(__file__).with_name("torch_smoke.py"))]
        ranks.append(subprocess.Popen(command, env=mine, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise SystemExit("\n".join(f"--- rank {at}\n{output[-4000:]}" for at, output in enumerate(outputs)))
    return outputs[0].strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="such as 2.4.0; default: the oldest and the newest")
    parser.add_argument("--keep", action="store_true", help="leave the virtual environments")
    chosen = parser.parse_args()
    lacking = [tool for tool in ("gcc", "readelf") if shutil.which(tool) is None]
    if lacking:
        print(f"skipped: wheels that want CUDA libraries cannot be loaded without {' and '.join(lacking)}")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for version in chosen.versions or offered():
        try:
            print(f"torch {version}: {smoke(install(version))}", flush=True)
        finally:
            if not chosen.keep:
                shutil.rmtree(FOLDER / version, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
