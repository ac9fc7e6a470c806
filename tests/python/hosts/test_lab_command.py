"""`ringreduce lab` as a shell's command: signals, the terminal, the working directory and the user's variables."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from deadlines import SOON_S
from ranks import clean_environment

from ringreduce.lab.requirements import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

LAB = [sys.executable, "-m", "ringreduce", "lab", "--hosts", "1", "--rate", "none"]
LAB_S = 3 * SOON_S
"""A lab is up by then, and has ended by then."""


def test_sigterm_ends_the_command() -> None:
    command = [*LAB, "sh", "-c", "echo up; exec sleep 1000"]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, start_new_session=True) as lab:
        try:
            assert lab.stdout is not None
            assert lab.stdout.readline() == b"up\n"
            lab.terminate()
            assert lab.wait(LAB_S) == 128 + signal.SIGTERM
        finally:
            lab.kill()
