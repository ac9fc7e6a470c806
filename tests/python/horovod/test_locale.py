"""Programs with a locale that writes numbers with a comma, as German ones do: settings and timelines have points."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import completed
from ranks import clean_environment

TRAIN = """
import locale, os, time
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
import numpy as np, ringreduce as hvd
from ringreduce import _core
hvd.init()
hvd.allreduce(np.ones(3, np.float32), name="loss")
while "NEGOTIATE" not in open("trace").read():
    time.sleep(0.01)
os._exit(0)  # the trace stays as it is while the job runs
"""


@pytest.fixture
def commas(tmp_path: Path) -> dict[str, str]:
    """Variables with which de_DE.UTF-8 is known."""
    compiler = shutil.which("localedef")
    if compiler is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("localedef and the sources of locales (Debian: locales) are not installed")
    folder = tmp_path / "locales"
    folder.mkdir()
    subprocess.run([compiler, "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")], check=True)
    return {"LOCPATH": str(folder)}


def test_fractions_in_settings_and_in_the_trace_of_a_running_job(commas: dict[str, str], tmp_path: Path) -> None:
    variables = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2.5", "HOROVOD_TIMELINE": "trace"}
    done = completed([sys.executable, "-c", TRAIN], env=clean_environment() | commas | variables, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    events = json.loads((tmp_path / "trace").read_text() + "]")
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in slices} == {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"}
    assert all(isinstance(event["ts"], float) and event["dur"] >= 0 for event in slices)
