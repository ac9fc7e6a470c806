"""Asks a GPU's driver what its documentation leaves open: rr_gpu's probes, each in a process with a deadline.

    python probes.py PROGRAM --out FILE

One JSON line in FILE and one line of output for each. Exit status 1 when something that the package relies on does not
hold, or when a probe did not come back: its process is killed, and the others are asked all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

DEADLINE_S = 20.0
AT_ONCE = 4  # each is a context of the GPU, which takes half a second and is idle most of the time


def main(argv: Sequence[str] | None = None) -> int:
    """Runs all of the program's probes."""
    parse = argparse.ArgumentParser()
    parse.add_argument("program")
    parse.add_argument("--out", required=True)
    parse.add_argument("--deadline-s", type=float, default=DEADLINE_S)
    args = parse.parse_args(argv)
    listed = subprocess.run([args.program, "probe"], capture_output=True, text=True, timeout=args.deadline_s)
    names = listed.stdout.split()
    if listed.returncode != 0 or not names:
        print(f"{args.program} probe: exit status {listed.returncode}: {listed.stderr.strip()}")
        return 1
    bad = 0
    with ThreadPoolExecutor(AT_ONCE) as pool, open(args.out, "a", encoding="utf-8") as out:
        for rows in pool.map(lambda name: ask(args.program, name, args.deadline_s), names):
            for row in rows:
                bad += not row["good"]
                out.write(json.dumps(row) + "\n")
                print(f"{'holds' if row['good'] else 'FAILED'}: {row['name']}: {row['answer']}", flush=True)
            out.flush()
    print(f"{bad} of {len(names)} probes failed")
    return int(bad > 0)


def ask(program: str, name: str, deadline_s: float) -> list[dict[str, Any]]:
    """What one probe answers; never raises for what the probe does."""
    process = subprocess.Popen(
        [program, "probe", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    why = ""
    try:
        said, complaint = process.communicate(timeout=deadline_s)
        if process.returncode != 0:
            why = f"exit status {process.returncode}: {complaint.strip()[-300:]}"
    except subprocess.TimeoutExpired:
        why = f"did not end within {deadline_s:g} s"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            said, _ = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            said, why = "", why + ", nor when it was killed"
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]
    if why or not rows:
        rows.append({"what": "probe", "name": name, "good": False, "answer": why or "said nothing"})
    return rows


if __name__ == "__main__":
    sys.exit(main())
