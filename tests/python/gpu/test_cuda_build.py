"""What nvcc has made: code for every GPU in the module, where cuobjdump finds it, that computes as the CPU does."""

import re
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import completed

import ringreduce
from ringreduce import _core

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "cmake"
TARGETS = {80, 90, 100}
PTX, ELF = 1, 2  # kinds of code in a fat binary

needs_kernels = pytest.mark.skipif(not _core.cuda_built(), reason="this build has no CUDA kernels")


def section(module: bytes, wanted: str) -> bytes:
    """What lies in a section of a 64-bit ELF file, "" if it has none of that name."""
    at, each, count, names = struct.unpack_from("<Q10xHHH", module, 40)
    headers = [struct.unpack_from("<II8xQQQ", module, at + i * each) for i in range(count)]
    text = headers[names][3]
    for name, _, _, offset, nbytes in headers:
        if module[text + name :].split(b"\0", 1)[0] == wanted.encode():
            return module[offset : offset + nbytes]
    return b""


def codes(fat: bytes) -> Iterator[tuple[int, int]]:
    """(kind, GPU) of everything in a fat binary: a header, then each piece with a header of its own."""
    magic, _, header, nbytes = struct.unpack_from("<IHHQ", fat)
    assert magic == 0xBA55ED50
    at, end = header, header + nbytes
    while at < end:
        kind, _, header, nbytes, _, _, _, _, gpu = struct.unpack_from("<HHIQIIHHI", fat, at)
        yield kind, gpu
        at += header + nbytes


@needs_kernels
def test_the_module_has_code_for_every_gpu_and_ptx_for_later_ones() -> None:
    found = set(codes(section(Path(_core.__file__).read_bytes(), ".nv_fatbin")))
    assert {gpu for kind, gpu in found if kind == ELF} == TARGETS
    assert {gpu for kind, gpu in found if kind == PTX} == {max(TARGETS)}


@needs_kernels
@pytest.mark.skipif(shutil.which("cuobjdump") is None, reason="cuobjdump is not installed")
def test_cuobjdump_lists_that_code() -> None:
    def listed(what: str) -> set[int]:
        text = completed(["cuobjdump", what, _core.__file__], check=True).stdout
        return {int(gpu) for gpu in re.findall(r"sm_(\d+)", text)}

    assert listed("--list-elf") == TARGETS
    assert listed("--list-ptx") == {max(TARGETS)}


def nvcc() -> list[str]:
    """The build's nvcc and its flags, but for files and targets."""
    ninja = BUILD / "build.ninja"
    match = re.search(r"COMMAND = .* && (.*nvcc.* -fatbin .*)", ninja.read_text()) if ninja.exists() else None
    if match is None:
        pytest.skip("build/cmake was made without nvcc")
    command = shlex.split(match.group(1))
    assert command[-3] == "-o"
    kept = [word for word in command[:-3] if word != "-fatbin"]
    while "-gencode" in kept:
        del kept[kept.index("-gencode") : kept.index("-gencode") + 2]
    return [word for word in kept if not word.startswith("--compress-mode")]


def test_warnings_of_nvcc_and_of_its_assembler_are_errors(tmp_path: Path) -> None:
    command = nvcc()
    if "-Werror" not in command:
        pytest.skip("build/cmake was configured without RR_WERROR")

    def errors(body: str) -> str:
        source = tmp_path / "trial.cu"
        source.write_text(f'extern "C" __global__ void trial(int* x) {{ {body} }}\n')
        done = completed([*command, "-cubin", "-arch=sm_90", "-o", str(tmp_path / "trial.cubin"), str(source)])
        assert (done.returncode != 0) == ("error" in done.stdout + done.stderr)
        return done.stdout + done.stderr

    assert not errors("*x = 1;")
    assert "never" in errors("int unused; *x = 1;")
    assert "Local memory used" in errors("int y[64]; for (int i = 0; i < 64; ++i) y[x[i] & 63] = i; *x = y[*x & 63];")


def test_products_and_sums_are_rounded_each_and_denormals_kept(tmp_path: Path) -> None:
    source, ptx = ROOT / "csrc" / "gpu" / "kernels" / "kernels.cu", tmp_path / "kernels.ptx"
    subprocess.run([*nvcc(), "-ptx", "-arch=compute_80", "-o", str(ptx), str(source)], check=True)
    text = ptx.read_text()
    assert text.count(".entry rr_") == (ROOT / "csrc" / "gpu" / "kernels" / "kernel_list.h").read_text().count("X(rr_")
    arithmetic = set(re.findall(r"\b(?:add|sub|mul|div|fma|mad|rcp)\.[\w.]*f(?:16|32|64)\b", text))
    exact = {f"{what}.rn.f{bits}" for what in ("add", "mul", "div") for bits in (32, 64)}
    assert arithmetic == exact | {"rcp.rn.f32"}
    assert not re.search(r"\.ftz\b|\.approx\b|\.full\b", text)
    # What moves most bytes: four loads of 16 bytes under way before the first is stored.
    copy = text.split(".entry rr_copy_4(")[1].split(".entry")[0]
    assert re.findall(r"\b(ld|st)\.global\.v4\.", copy)[:8] == ["ld"] * 4 + ["st"] * 4


def test_the_twin_without_kernels_says_so(tmp_path: Path) -> None:
    library = BUILD / "libringreduce_core.a"
    if not library.exists():
        pytest.skip("build/cmake has no libringreduce_core.a")
    main = tmp_path / "main.cc"
    main.write_text(
        """
        #include <cstdio>
        #include "base/errors.h"
        #include "gpu/device.h"
        int main() {
          std::printf("built %d\\n", rr::cuda_built());
          try {
            rr::cuda_device(0);
          } catch (const rr::UnavailableError& error) {
            std::printf("unavailable: %s\\n", error.what());
          }
        }
        """
    )
    program, twin = tmp_path / "program", ROOT / "csrc" / "gpu" / "no_cuda.cc"
    flags = ["-std=c++17", f"-I{ROOT / 'csrc'}", "-pthread"]
    subprocess.run(["c++", *flags, str(main), str(twin), str(library), "-ldl", "-o", str(program)], check=True)
    said = completed([str(program)], check=True).stdout
    assert said.startswith("built 0\nunavailable: ")
    assert "no CUDA kernels" in said


def test_a_build_without_nvcc_is_configured_and_says_why(tmp_path: Path) -> None:
    cmake = pytest.importorskip("cmake")
    base = [str(Path(cmake.CMAKE_BIN_DIR) / "cmake"), "-S", str(ROOT), "-DRR_PYTHON=OFF"]

    def status(folder: str, *options: str, **environment: str) -> str:
        command = [*base, "-B", str(tmp_path / folder), *options]
        said = completed(command, env=environment, check=True).stdout
        return next(line for line in said.splitlines() if "CUDA:" in line)

    assert status("off", "-DRR_CUDA=OFF", PATH="/usr/bin:/bin").endswith("CUDA: off (RR_CUDA=OFF)")
    missing = str(tmp_path / "nvcc")
    assert f"CUDA: off ({missing} does not compile" in status("missing", PATH="/usr/bin:/bin", CUDACXX=missing)


def test_cuda_built_is_what_the_core_says() -> None:
    assert ringreduce.cuda_built() is _core.cuda_built()
    has_code = bool(section(Path(_core.__file__).read_bytes(), ".nv_fatbin"))
    assert _core.cuda_built() is has_code
