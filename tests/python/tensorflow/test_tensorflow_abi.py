"""Our declarations of TensorFlow's C API, compared by a compiler with the headers of the installed TensorFlow."""

import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import completed
from ranks import package_folder

HEADER = Path(__file__).resolve().parents[3] / "csrc" / "framework" / "tensorflow_abi.h"

if (SPEC := find_spec("tensorflow")) is None or SPEC.origin is None:
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
INCLUDE = Path(SPEC.origin).parent / "include"


def test_prototypes_and_numbers_are_tensorflows(tmp_path: Path) -> None:
    if not (INCLUDE / "tensorflow" / "c" / "kernels.h").is_file():
        pytest.skip("this TensorFlow came without headers")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    ours = HEADER.read_text()
    functions = re.search(r"#define RR_TF_FUNCTIONS\(X\).*?\n(?!.*\\\n)[^\n]*\n", ours, re.DOTALL)
    numbers = re.findall(r"\b(TF_[A-Z0-9_]+) = (\d+)", ours)
    assert functions
    assert len(numbers) >= 20
    names = re.findall(r"\bX\([^,]+, (TF_\w+),", functions[0])
    assert len(names) >= 30
    source = tmp_path / "compare.cc"
    source.write_text(
        "#include <type_traits>\n"
        "#include <tensorflow/c/kernels.h>\n#include <tensorflow/c/ops.h>\n"
        "#include <tensorflow/c/tf_status.h>\n#include <tensorflow/c/tf_tensor.h>\n"
        + functions[0]
        + "#define RR_SAME(result, name, parameters) "
        "static_assert(std::is_same_v<decltype(&name), result(*) parameters>, #name);\n"
        "RR_TF_FUNCTIONS(RR_SAME)\n"
        + "".join(f"static_assert({name} == {value});\n" for name, value in numbers)
        + "static_assert(sizeof(TF_Code) == sizeof(int) && sizeof(TF_DataType) == sizeof(int));\n"
    )
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", "-isystem", str(INCLUDE), str(source)]
    done = completed(command)
    assert done.returncode == 0, done.stderr


def test_without_tensorflow_the_operators_say_why_there_are_none() -> None:
    """What is found while the library is loaded outlives the constructors of its globals."""
    library = Path(package_folder()) / "ringreduce" / "_tensorflow.so"
    words = (
        "import ctypes, sys; ops = ctypes.CDLL(sys.argv[1]); ops.ringreduce_problem.restype = ctypes.c_char_p; "
        "print(ops.ringreduce_problem().decode())"
    )
    done = completed([sys.executable, "-c", words, str(library)])
    assert "libtensorflow_framework is not loaded" in done.stdout, done.stdout + done.stderr
