#!/usr/bin/env python3
"""Break the core on purpose, one line at a time, and see that the C++ tests notice.

    .venv/bin/python tests/tools/mutation.py [NAME ...]

Works on a copy of the last commit in a temporary folder. A mutation is noticed when the tests fail, crash, or do not
end within two minutes. Exit status 1 when one is not, or when the unchanged tests fail. Takes about five minutes.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 120

# name: (file, text in it, what replaces it)
MUTATIONS = {
    "reduction": ("csrc/data/kernels_impl.h", "srcs, nsrc, dsts, ndst, count};", "srcs, nsrc, dsts, ndst, count * 0};"),
    "wait": (
        "csrc/engine/group.cc",
        "bool Group::wait(Operation& operation, double timeout_s, Interrupt interrupt) {",
        "bool Group::wait(Operation& operation, double timeout_s, Interrupt interrupt) {\n  if (size()) return true;",
    ),
    "fold-order": (
        "csrc/collective/plan.h",
        "const bool fold = step < size - 1;",
        "const bool fold = step < size - 2;",
    ),
    "mismatch": (
        "csrc/group/ledger.cc",
        "(std::memory_order_relaxed) != mine)",
        "(std::memory_order_relaxed) != mine && false)",
    ),
    "window": (
        "csrc/engine/submit.cc",
        "if (unconsumed_ < oldest || least_watermark(oldest) < oldest) return false;",
        "",
    ),
    "straddling": ("csrc/transport/shm.cc", "std::memcpy(element + before_wrap,", "std::memcpy(element,"),
    "flow-control": ("csrc/transport/mpi.cc", "turn_out_ == 0);", "false);"),
    "part": ("csrc/transport/mpi.cc", "std::memcpy(part_ + part_nbytes_, next_, n);", "std::memcpy(part_, next_, n);"),
    "withdrawal": (
        "csrc/transport/mpi_communicator.cc",
        '    check(library_->cancel(message->request), "MPI_Cancel");\n    completed(held);\n',
        "",
    ),
    "lane-order": (
        "csrc/cuda/cuda_lanes.cc",
        "  RR_CUDA(context_, stream_wait_event, stream(lane), event_of(mark), 0);\n",
        "",
    ),
    "hold-out": ("csrc/cuda/cuda_holds.cc", "return out_.empty() && !has_captured_;", "return true;"),
    "stale-export": ("csrc/cuda/cuda_exports.cc", "mixed(uid + piece.id *", "mixed(uid + piece.base *"),
    "slot-reuse": ("csrc/cuda/cuda_kernels.cc", "is_older && is_free(slot)", "is_older"),
}


def run(*command: str, cwd: pathlib.Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:] + done.stderr[-4000:])


def build(tree: pathlib.Path) -> None:
    run(tool("cmake"), "--build", "build", cwd=tree)


def tool(name: str) -> str:
    own = pathlib.Path(sys.executable).parent / name
    return str(own) if own.exists() else name


def verdict(tree: pathlib.Path) -> str:
    """How the tests ended: "passed", or what happened instead."""
    try:
        done = subprocess.run([tree / "build/tests/cpp/rr_tests"], capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT_S} s"
    if done.returncode < 0:
        return f"signal {-done.returncode}"
    if done.returncode > 0:
        cases = re.findall(r"^TEST CASE: +(.*)", done.stdout, re.MULTILINE)
        return f"{len(cases)} failed, such as: {cases[0] if cases else done.stdout[-200:]}"
    return "passed"


def main(names: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="ringreduce-mutation-") as folder:
        tree = pathlib.Path(folder)
        parts = ["csrc", "tests/cpp", "CMakeLists.txt", "pyproject.toml"]
        archive = subprocess.run(["git", "archive", "HEAD", *parts], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x"], cwd=tree, input=archive.stdout, check=True)
        options = ["-DRR_TESTS=ON", "-DRR_PYTHON=OFF", "-DRR_X86_KERNELS=OFF", "-DRR_CUDA=OFF"]
        run(tool("cmake"), "-S", ".", "-B", "build", "-G", "Ninja", *options, cwd=tree)
        build(tree)
        before = verdict(tree)
        print(f"{'unchanged':12} {before}", flush=True)
        survivors = [] if before == "passed" else ["unchanged"]
        for name in names or MUTATIONS:
            file, text, replacement = MUTATIONS[name]
            original = (tree / file).read_text()
            if original.count(text) != 1:
                sys.exit(f"{name}: {file} holds the line {original.count(text)} times; adapt the mutation")
            (tree / file).write_text(original.replace(text, replacement))
            build(tree)
            found = verdict(tree)
            print(f"{name:12} {found}", flush=True)
            if found == "passed":
                survivors.append(name)
            (tree / file).write_text(original)
        print("not noticed: " + ", ".join(survivors) if survivors else "all noticed")
        return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
