"""The fake CUDA driver, as far as Python tests rely on it; tests/cpp/gpu/cuda_device_test.cc does the rest."""

import os
import sys
from pathlib import Path

import fake_cuda
import pytest
from processes import completed

pytestmark = pytest.mark.skipif(
    not fake_cuda.LIBRARY.exists(), reason="no build/cmake/libfakecuda.so: build with RR_TESTS=ON (make build)"
)


def run(code: str, **environment: str) -> str:
    """A process of its own: the library keeps state."""
    done = completed(
        [sys.executable, "-c", "import numpy as np, fake_cuda\n" + code],
        env={**os.environ, **environment, "PYTHONPATH": str(Path(fake_cuda.__file__).parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_arrays_live_in_streams_and_graphs_replay() -> None:
    out = run(
        """
gpu = fake_cuda.Gpu(1)
stream = gpu.stream()
expected = (np.arange(6, dtype=np.float64) * 3 - 1).reshape(2, 3)
x = gpu.array(expected, stream)
about = x.__cuda_array_interface__
assert about["shape"] == (2, 3) and about["typestr"] == "<f8" and about["version"] == 3
assert about["stream"] == stream.handle and about["data"] == (x.address, False)
assert (x.numpy() == expected).all()
assert gpu.array(expected).__cuda_array_interface__["stream"] == 1
assert gpu.empty(0, np.int8).numpy().shape == (0,)
gate = stream.gate()
x.set(expected + 1)
assert not stream.is_done()
other = gpu.array(expected, gpu.stream())  # beside the stream that waits
assert (other.numpy() == expected).all()
gate.open()
assert (x.numpy() == expected + 1).all() and stream.is_done()
source = gpu.pinned(6, np.float64)
with stream.capture() as graph:
    gpu.call("cuMemcpyAsync", x.address, source.ctypes.data, 48, stream.handle)
for replay in range(3):
    assert (x.numpy() == expected + 1 + replay).all()
    source[:] = (expected + 2 + replay).reshape(-1)
    graph.replay()
print(gpu.calls("cuGraphLaunch"))
""",
        FAKE_CUDA_DEVICES="2",
    )
    assert out == "3\n"


def test_errors_come_when_they_are_asked_for() -> None:
    out = run(
        """
gpu = fake_cuda.Gpu()
codes, arrays = [], []
for _ in range(4):
    try:
        arrays.append(gpu.empty(10, np.int32))
        codes.append(0)
    except fake_cuda.CudaError as error:
        codes.append(error.code)
gpu.fail("cuStreamQuery:1+:700")
for call in ("cuStreamQuery", "cuStreamSynchronize"):
    try:
        gpu.call(call, None)
    except fake_cuda.CudaError as error:
        codes.append(error.code)
print(codes)
""",
        FAKE_CUDA_FAIL="cuMemAlloc:2:2,cuMemAlloc:2:801",
    )
    # The second demand counts only the calls that the first one has let through.
    assert out == "[0, 2, 801, 0, 700, 700]\n"


def test_the_device_count_and_memory_are_what_the_environment_says() -> None:
    out = run(
        """
gpu = fake_cuda.Gpu()
kept = gpu.empty(3000, np.uint8)
for ordinal, nbytes in ((1, 1), (0, 2000)):
    try:
        fake_cuda.Gpu(ordinal).empty(nbytes, np.uint8)
    except fake_cuda.CudaError as error:
        assert error.code == (101 if ordinal else 2)
    else:
        raise AssertionError((ordinal, nbytes))
del kept
gpu.empty_cache()
print(len(fake_cuda.Gpu().empty(2000, np.uint8).numpy()))
""",
        FAKE_CUDA_MEMORY="4096",
    )
    assert out == "2000\n"
