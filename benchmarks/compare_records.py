"""What became slower between two records of benchmarks/record.py, beyond the noise that they measured themselves.

    .venv/bin/python benchmarks/compare_records.py docs/results/OLD.json docs/results/NEW.json

Times of different days are not compared: the machine may have changed. What is compared are our ratios to each peer,
taken within rounds of one run. A ratio has become worse when the whole range of the new rounds lies below the whole
range of the old ones. Prints those, and what only one of the records has. Exit status 1 if any is worse, 2 if nothing
could be compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Key = tuple[str, str, str, int]
"""(ours, peer, level, bytes) of a ratio."""


def main(argv: Sequence[str]) -> int:
    """Compares the two files. Returns 0; 1 if something became slower; 2 for wrong arguments or nothing to compare."""
    if len(argv) != 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    old, new = (json.loads(Path(path).read_text(encoding="utf-8")) for path in argv)
    for record, path in ((old, argv[0]), (new, argv[1])):
        other = new if record is old else old
        for part, key in sorted(_keys(record) - _keys(other)):
            print(f"# only in {path}: {_name(part, key)}")
    if not _keys(old) & _keys(new):
        print("the records have no ratio in common", file=sys.stderr)
        return 2
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
                yield (
                    f"{_name(part, key)}: "
                    f"{before[key]['median']:.2f}x ({before[key]['min']:.2f} to {before[key]['max']:.2f}), "
                    f"now {after[key]['median']:.2f}x ({after[key]['min']:.2f} to {after[key]['max']:.2f})"
                )


def _keys(record: dict[str, Any]) -> set[tuple[str, Key]]:
    """(part, key) of every ratio."""
    return {(part, key) for part, found in record["comparisons"].items() for key in _ratios(found)}


def _name(part: str, key: Key) -> str:
    ours, peer, level, nbytes = key
    return f"{part}: {ours} ({level}), {nbytes} B, beside {peer}"


def _ratios(found: dict[str, Any]) -> dict[Key, dict[str, float]]:
    return {(r["ours"], r["peer"], r["level"], r["nbytes"]): r for r in found["ratios"]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
