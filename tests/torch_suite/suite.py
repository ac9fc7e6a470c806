"""torch's own tests of torch.distributed, run with the backend ringreduce. run.py calls this once per gate.

    python suite.py GATE RESULTS TEST...

Each test's ranks are spawned processes that import this module again. torch decides by the name of the backend, while
it is imported, which tests exist for it; so it is imported with the name of a gate (gloo or mpi), and the tests then
find the name ringreduce. Some tests ask at run time for eight ranks unless BACKEND is mpi; they are content with three.
RESULTS gets one line of JSON per test: {"name", "outcome": passed | skipped | failed, "text"}.
"""

import json
import os
import sys
import tempfile
import unittest

GATE = os.environ.setdefault("RR_SUITE_GATE", sys.argv[1] if len(sys.argv) > 1 else "gloo")
os.environ["BACKEND"] = GATE
os.environ.setdefault("WORLD_SIZE", "3")
if "TEMP_DIR" not in os.environ:
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="ringreduce-suite-")

from torch.testing._internal import common_distributed  # noqa: E402

import ringreduce.torch  # noqa: E402, F401  # registers the backend

for feature in ("ddp", "subgroup", "plugin"):
    common_distributed.DistTestCases.backend_feature[feature].add("ringreduce")

from torch.testing._internal.distributed import distributed_test  # noqa: E402

distributed_test.BACKEND = "ringreduce"
os.environ["BACKEND"] = "mpi"


class TestRingreduce(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


class Lines(unittest.TextTestResult):
    """Writes down each test's outcome as soon as it is known."""

    results = ""

    def _note(self, test: unittest.TestCase, outcome: str, text: str) -> None:
        with open(self.results, "a") as file:
            file.write(json.dumps({"name": test.id().rpartition(".")[2], "outcome": outcome, "text": text}) + "\n")

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self._note(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err) -> None:
        super().addFailure(test, err)
        self._note(test, "failed", self.failures[-1][1])

    def addError(self, test: unittest.TestCase, err) -> None:
        super().addError(test, err)
        self._note(test, "failed", self.errors[-1][1])


if __name__ == "__main__":
    Lines.results = sys.argv[2]
    chosen = unittest.TestSuite(TestRingreduce(name) for name in sys.argv[3:])
    unittest.TextTestRunner(stream=sys.stderr, resultclass=Lines, verbosity=2).run(chosen)
