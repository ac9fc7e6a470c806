"""tests/horovod_suite/run.py counts right: a checkout in small, with a test of each kind, stands in for Horovod's."""

import sys
from pathlib import Path

from processes import completed

RUN = Path(__file__).resolve().parents[2] / "horovod_suite" / "run.py"
STAND_IN = """
import horovod.common.basics, unittest

hvd = horovod.common.basics.HorovodBasics()

class TorchTests(unittest.TestCase):
    def test_good(self):
        hvd.init()
        assert hvd.size() == 2

    def test_skipped(self):
        self.skipTest("no such thing here")

    {more}
"""


def suite(checkout: Path, more: str, *arguments: str) -> tuple[int, str]:
    """Status and output of a run of one file with two tests, and with more."""
    folder = checkout / "test" / "parallel"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_torch.py").write_text(STAND_IN.format(more=more))
    command = [sys.executable, str(RUN), str(checkout), "test_torch.py", *arguments]
    done = completed(command)
    return done.returncode, done.stdout + done.stderr


def test_passes_and_skips(tmp_path: Path) -> None:
    status, text = suite(tmp_path, "")
    assert status == 0, text
    assert "test_torch.py: 1 passed, 1 skipped" in text
    assert "skipped 1: no such thing here" in text


def test_a_failure_on_one_rank_is_a_failure(tmp_path: Path) -> None:
    status, text = suite(tmp_path, "def test_one_fails(self): assert hvd.rank() == 0")
    assert status == 1
    assert "FAILED test_torch.py::test_one_fails\nrank 1:" in text
    assert "1 failed" in text.splitlines()


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    done = completed([sys.executable, str(RUN), str(tmp_path)])
    assert done.returncode == 2
    assert "no checkout of Horovod" in done.stderr
