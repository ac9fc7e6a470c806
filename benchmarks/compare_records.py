"""What became slower between two records of benchmarks/record.py, beyond the noise that they measured themselves.

    .venv/bin/python benchmarks/compare_records.py docs/results/OLD.json docs/results/NEW.json

Times of different days are not compared: the machine may have changed. What is compared are our ratios to each peer,
taken within rounds of one run. A ratio has become worse when the whole range of the new rounds lies below the whole
range of the old ones. Prints those, exit status 1 if there are any.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str]) -> int:
    """Compares the two files. Returns 0, 1 when something became slower, 2 for wrong arguments."""
    if len(argv) != 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    old, new = (json.loads(Path(path).read_text(encoding="utf-8")) for path in argv)
    slower = list(regressions(old, new))
    for line in slower:
        print(line)
    print(f"# {len(slower)} slower" if slower else "# nothing slower beyond the noise")
    return 1 if slower else 0


def regressions(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """A line for each ratio whose new range lies below its old one."""
    for part in old["comparisons"].keys() & new["comparisons"].keys():
        before, after = (_ratios(record["comparisons"][part]) for record in (old, new))
        for key in sorted(before.keys() & after.keys()):
            if after[key]["max"] < before[key]["min"]:
                ours, peer, level, nbytes = key
                yield (
                    f"{part}: {ours} ({level}), {nbytes} B, beside {peer}: "
                    f"{before[key]['median']:.2f}x ({before[key]['min']:.2f} to {before[key]['max']:.2f}), "
                    f"now {after[key]['median']:.2f}x ({after[key]['min']:.2f} to {after[key]['max']:.2f})"
                )


def _ratios(found: dict[str, Any]) -> dict[tuple[str, str, str, int], dict[str, float]]:
    return {(r["ours"], r["peer"], r["level"], r["nbytes"]): r for r in found["ratios"]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
