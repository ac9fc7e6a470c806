"""`make compare OLD=COMMIT`: builds an old commit and the present one side by side and says what became slower.

    .venv/bin/python benchmarks/compare.py OLD [NEW] [--rounds 6] [--more 12] [--quick] [--only REGEX] [--no-lab]
        [--record] [--list]

NEW is by default HEAD, or the checkout as it stands where it differs from HEAD. Both are copied to build/compare and
compiled there. In each round everything is measured by the old build, the new one, and the old one again, in an order
that changes; a difference counts only beyond what the two old turns show (builds/verdict.py) and beyond 5 %. What
seems to differ after --rounds gets --more rounds, and is judged by all. Every turn stays in build/compare/OLD-NEW.json,
with --record in docs/results. 14 minutes, and eight for four hosts (root; the tools of `make optional`). Last line: "no
difference", or what differs. Exit status 1 where the new build is slower or fails; 2 where it cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from builds import cases, table, trees
from builds.hosts import Hosts
from builds.trees import Tree, TreeError
from builds.turns import AGAIN, NEW, OLD, Case, Turns
from builds.verdict import Judgement

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "compare"
RESULTS = ROOT / "docs" / "results"
HOSTS = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Builds, measures, writes and prints. Returns the exit status."""
    args = _arguments(argv)
    pattern = args.only or (cases.QUICK if args.quick else None)
    here = cases.chosen(cases.here(), pattern)
    one_each, two_each = Hosts(HOSTS), Hosts(HOSTS, 2)
    across = {
        one_each: cases.chosen(cases.across(one_each), pattern),
        two_each: cases.chosen(cases.across_of_several(two_each), pattern),
    }
    if args.list:
        print("\n".join(case.name for case in [*here, *across[one_each], *across[two_each]]))
        return 0
    if not args.lab:
        across = {}
    if not here and not any(across.values()):
        print(f"compare.py: no case has a name in which {pattern!r} is found: --list has them", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs and lab end with this process
    try:
        old, new = _trees(args.old, args.new)
    except TreeError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    # What is imported from here on (the lab, the machine's facts) is the new build's, not a stale one of the checkout.
    sys.path.insert(0, str(new.path))
    folder = RESULTS if args.record else FOLDER
    stem = f"{date.today().isoformat()}-compare-" if args.record else ""
    record = Record(folder / f"{stem}{old.name}-{new.name}.json", old, new, argv)
    found = record.measure(here, args.rounds, args.more)
    for hosts, theirs in across.items():
        if not theirs:
            continue
        if reason := hosts.missing():
            print(f"# {hosts.name}: skipped: {reason}", file=sys.stderr)
        else:
            with hosts.up([old, new]):
                found |= record.measure(theirs, args.rounds, args.more)
    record.write(found)
    print(f"\nold: {old.label}\nnew: {new.label}\n\n{table.text(found)}")
    return table.status(found)


class Record:
    """The turns of one comparison, and the file that has them all."""

    def __init__(self, file: Path, old: Tree, new: Tree, argv: Sequence[str] | None) -> None:
        from ringreduce.bench import machine

        self._file = file
        self._turns = Turns({OLD: old, NEW: new, AGAIN: old}, self.write)
        command = ["benchmarks/compare.py", *(sys.argv[1:] if argv is None else argv)]
        self._meta = {**machine.facts(), "command": " ".join(command), "old": old.label, "new": new.label}

    def measure(self, chosen: Sequence[Case], rounds: int, more: int) -> dict[str, Judgement]:
        """See Turns."""
        return self._turns.measure(chosen, rounds, more)

    def write(self, found: Mapping[str, Judgement] | None = None) -> None:
        """Every turn so far, and what is said of the cases once that is known."""
        document: dict[str, Any] = {"meta": self._meta}
        document["cases"] = [{"case": name, **asdict(one)} for name, one in (found or {}).items()]
        document["runs"] = [asdict(run) for run in self._turns.runs]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _trees(old: str, new: str | None) -> tuple[Tree, Tree]:
    first = trees.of_commit(ROOT, old, FOLDER)
    if new is None and trees.is_dirty(ROOT):
        print("# the checkout differs from HEAD: what is compared is the checkout as it stands", file=sys.stderr)
        second = trees.of_checkout(ROOT, FOLDER)
    else:
        second = trees.of_commit(ROOT, new or "HEAD", FOLDER)
    for tree in dict.fromkeys((first, second)):
        print(f"# building {tree.label}", file=sys.stderr, flush=True)
        trees.build(tree)
    return first, second


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("old", metavar="OLD", nargs="?", help="a commit")
    add("new", metavar="NEW", nargs="?", help="another (default: HEAD, or the checkout where it differs from HEAD)")
    add("--rounds", type=int, default=6, metavar="N", help="of every case (default %(default)s)")
    add("--more", type=int, default=12, metavar="N", help="of what seems to differ (default %(default)s)")
    add("--quick", action="store_true", help="a few cases of one host: two minutes")
    add("--only", metavar="REGEX", help='cases in whose name it is found, such as "private|mlp"')
    add("--lab", action=argparse.BooleanOptionalAction, default=True, help="four hosts too (default where they can be)")
    add("--record", action="store_true", help="write to docs/results instead of build/compare")
    add("--list", action="store_true", help="print the names of the cases, and stop")
    args = parser.parse_args(argv)
    if not args.old and not args.list:
        parser.error("OLD, a commit, is required")
    return args


if __name__ == "__main__":
    sys.exit(main())
