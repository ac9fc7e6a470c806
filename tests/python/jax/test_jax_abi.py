"""The structs of XLA's FFI that csrc/framework/xla_ffi.h declares by hand, beside jaxlib's own header."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deadlines import HANG_S
from processes import completed

HEADER = Path(__file__).parents[3] / "csrc" / "framework" / "xla_ffi.h"
STRUCTS = {  # ours: theirs
    "Extension": "XLA_FFI_Extension_Base",
    "ApiVersion": "XLA_FFI_Api_Version",
    "ErrorCreateArgs": "XLA_FFI_Error_Create_Args",
    "Buffer": "XLA_FFI_Buffer",
    "ByteSpan": "XLA_FFI_ByteSpan",
    "Scalar": "XLA_FFI_Scalar",
    "Args": "XLA_FFI_Args",
    "Rets": "XLA_FFI_Rets",
    "Attrs": "XLA_FFI_Attrs",
    "Api": "XLA_FFI_Api",
    "CallFrame": "XLA_FFI_CallFrame",
    "Metadata": "XLA_FFI_Metadata",
    "MetadataExtension": "XLA_FFI_Metadata_Extension",
}
BEGINNINGS = {"Api", "CallFrame", "Metadata"}  # more fields follow there, which we do not know
ENUMS = {
    "ExtensionType": "XLA_FFI_Extension_",
    "ErrorCode": "XLA_FFI_Error_Code_",
    "DataType": "XLA_FFI_DataType_",
    "ArgType": "XLA_FFI_ArgType_",
    "RetType": "XLA_FFI_RetType_",
    "AttrType": "XLA_FFI_AttrType_",
    "ExecutionStage": "XLA_FFI_ExecutionStage_",
}
NAMES = {"error_create": "XLA_FFI_Error_Create"}
PREFIXES = ("Arg", "Ret", "Attr")  # of enumerators, beside the k


def structs_of(text: str) -> dict[str, list[str]]:
    """Field names by struct, as the header has them."""
    found = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        body = re.sub(r"//[^\n]*", "", body)
        fields = [field.strip() for field in body.split(";") if field.strip()]
        matches = [re.search(r"\(\*(\w+)\)|(\w+)$", field) for field in fields]
        found[name] = [match[1] or match[2] for match in matches if match is not None]
    return found


def enumerators_of(text: str) -> list[tuple[str, str]]:
    """(our enumerator, theirs in capitals)."""
    pairs = []
    for enum, body in re.findall(r"^enum (\w+) : int \{(.*?)\};", text, re.MULTILINE | re.DOTALL):
        for name in re.findall(r"k(\w+) = ", body):
            plain = name
            for prefix in PREFIXES:
                plain = plain.removeprefix(prefix)
            if enum == "ExtensionType":
                theirs = plain.removesuffix("Extension")
            else:
                theirs = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", plain).upper()
            pairs.append((f"k{name}", ENUMS[enum] + theirs))
    return pairs


def program(text: str) -> str:
    """Prints one line for each fact in which the two headers differ."""
    lines = []

    def compare(what: str, ours: str, theirs: str) -> None:
        lines.append(f'  differ("{what}", (long)({ours}), (long)({theirs}));')

    for name, fields in structs_of(text).items():
        ours, theirs = f"rr::xla::{name}", STRUCTS[name]
        for field in fields:
            other = NAMES.get(field, field)
            compare(f"offset of {name}.{field}", f"offsetof({ours}, {field})", f"offsetof({theirs}, {other})")
            size = f"sizeof((({ours}*)nullptr)->{field})"
            compare(f"size of {name}.{field}", size, f"sizeof((({theirs}*)nullptr)->{other})")
        if name not in BEGINNINGS:
            compare(f"size of {name}", f"sizeof({ours})", f"sizeof({theirs})")
    for ours, theirs in enumerators_of(text):
        compare(ours, f"rr::xla::{ours}", theirs)
    compare("kMajor", "rr::xla::kMajor", "XLA_FFI_API_MAJOR")
    lines.append("  return rr::xla::kMinor > XLA_FFI_API_MINOR;")
    return "\n".join(
        [
            "#include <cstdio>",
            '#include "xla/ffi/api/c_api.h"',
            '#include "xla_ffi.h"',
            "static void differ(const char* what, long ours, long theirs) {",
            '  if (ours != theirs) std::printf("%s: %ld, in jaxlib %ld\\n", what, ours, theirs);',
            "}",
            "int main() {",
            *lines,
            "}\n",
        ]
    )


def differences(header: str, folder: Path) -> list[str]:
    """What differs between this text and the installed jaxlib's header."""
    jaxlib = pytest.importorskip("jaxlib", reason="jaxlib is not installed")
    include = Path(jaxlib.__file__).parent / "include"
    if not (include / "xla/ffi/api/c_api.h").is_file():
        pytest.skip("this jaxlib has no xla/ffi/api/c_api.h")
    compiler = shutil.which("g++") or pytest.skip("g++ is not installed")
    (folder / "xla_ffi.h").write_text(header)
    (folder / "compare.cc").write_text(program(header))
    flags = ["-std=c++17", "-w", f"-I{include}", f"-I{folder}"]
    subprocess.run(
        [compiler, *flags, "-o", str(folder / "compare"), str(folder / "compare.cc")], check=True, timeout=HANG_S
    )
    done = completed([str(folder / "compare")])
    return done.stdout.splitlines() + ["kMinor is newer than jaxlib's"] * done.returncode


def test_the_header_is_read_whole() -> None:
    text = HEADER.read_text()
    assert set(structs_of(text)) == set(STRUCTS)
    assert structs_of(text)["CallFrame"][-3:] == ["args", "rets", "attrs"]
    assert structs_of(text)["Api"] == ["struct_size", "extension_start", "api_version", "internal_api", "error_create"]
    pairs = dict(enumerators_of(text))
    assert pairs["kBF16"] == "XLA_FFI_DataType_BF16"
    assert pairs["kDeadlineExceeded"] == "XLA_FFI_Error_Code_DEADLINE_EXCEEDED"
    assert len(pairs) == len(re.findall(r" k\w+ = \d+,| k\w+ = \d+ }", text))


def test_structs_are_those_of_jaxlib(tmp_path: Path) -> None:
    assert not differences(HEADER.read_text(), tmp_path)


def test_a_difference_is_found(tmp_path: Path) -> None:
    text = HEADER.read_text()
    wrong = text.replace("  void* data;\n  int64_t rank;", "  int64_t rank;\n  void* data;").replace(
        "kF64 = 12", "kF64 = 13"
    )
    assert wrong != text
    found = differences(wrong, tmp_path)
    assert len(found) == 3
    assert found[-1] == "kF64: 13, in jaxlib 12"
