#!/usr/bin/env python3
"""Runs parts of `make test` one after the other and prints the seconds of each beside its budget (tests/budget.json).

    python3 tests/tools/parts.py build lint cpptest

A part that fails ends the run. A part that takes longer than its budget is named in the last line and fails nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

BUDGET = Path(__file__).resolve().parents[1] / "budget.json"


def last_line(seconds: dict[str, float], budget: dict[str, float]) -> str:
    """The sum, and the parts that took longer than their budget."""
    line = f"== make test: all passed in {sum(seconds.values()):.0f} s"
    late = [f"{part} {seconds[part]:.0f} s of {budget[part]:g}" for part in seconds if seconds[part] > budget[part]]
    return f"{line}; past their budget: {', '.join(late)}" if late else line


def main(parts: list[str]) -> int:
    budget: dict[str, float] = json.loads(BUDGET.read_text())
    seconds = {}
    for part in parts:
        print(f"== {part}", flush=True)
        begin = time.monotonic()
        status = subprocess.run(["make", part], check=False).returncode
        seconds[part] = time.monotonic() - begin
        print(f"-- {part}: {seconds[part]:.0f} s (budget {budget[part]:g} s)", flush=True)
        if status != 0:
            print(f"== make test: {part} failed; to repeat: make {part}", flush=True)
            return status
    print(last_line(seconds, budget))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
