"""`make bench`: measures everything that README.md and docs/ claim, in one go, beside every peer that is here.

    .venv/bin/python benchmarks/record.py [--rounds 5] [--only allreduce,small,collectives,train] [--readme]

Writes docs/results/DATE-MACHINE.json (every row of every round), .md (tables, and each promised figure: reached, or by
how much not) and .png; with --only the other parts stay as they are in a record of that name. --readme also rewrites
the table between the markers in README.md. Takes about half an hour on two cores. Exit status 1 when a result
is wrong, or one of ours did not come.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import targets

from ringreduce.bench import comparison, drawing, machine, versus_table
from ringreduce.plan import processor

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
SIZES = "8,512,4K,64K,256K,1M,2M,16M,128M"
PEERS = "gloo,openmpi,mpich,mpi4py,horovod,nccl"
MARKERS = ("<!-- figures: benchmarks/record.py --readme -->", "<!-- end of figures -->")
PARTS = ["allreduce", "small", "collectives", "train"]
DEADLINE_S = 3600  # of one part


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, writes, and prints the summary. Returns the exit status."""
    args = _arguments(argv)
    record: dict[str, Any] = {"meta": {**machine.facts(), "command": "make bench"}, "comparisons": {}, "training": {}}
    stem = RESULTS / f"{date.today().isoformat()}-{machine_name()}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    earlier = stem.with_suffix(".json")
    if set(args.only) != {*PARTS} and earlier.exists():
        record.update({kind: json.loads(earlier.read_text())[kind] for kind in ("comparisons", "training")})
    failed = []
    for name, what in parts(args.rounds).items():
        if name.partition(" ")[0] in args.only:
            kind = "training" if what[0] == "train" else "comparisons"
            found, status = _bench(what)
            if status != 0:
                failed.append(f"{name}: ringreduce bench ended with status {status}")
            if found is None:
                record[kind].pop(name, None)  # an earlier run's figures would stand for this one's
            else:
                record[kind][name] = found
            # Part by part: half an hour is long enough to be interrupted.
            stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if "allreduce" in record["comparisons"]:
        drawing.plot(record["comparisons"]["allreduce"], stem.with_suffix(".png"))
    text = markdown(record, stem.name)
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    if args.readme:
        readme(record, ROOT / "README.md")
    rows = [row for found in record["comparisons"].values() for row in found["results"]]
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed or any(row["wrong"] for row in rows) else 0


def parts(rounds: int) -> dict[str, list[str]]:
    """Name: the arguments of `ringreduce bench`. The first word of a name is what --only takes."""
    turns = ["--rounds", str(rounds)]
    found = {"allreduce": ["allreduce", "-np", "2", "--sizes", SIZES, "--vs", PEERS, *turns]}
    for ranks in ("4", "8"):
        few = ["--sizes", "8", "--buffers", "private", "--vs", "openmpi,mpich,mpi4py,gloo", *turns]
        found[f"small {ranks} ranks"] = ["allreduce", "-np", ranks, *few]
    for name in ("reducescatter", "allgather", "broadcast", "alltoall"):
        found[f"collectives {name}"] = [name, "-np", "2", "--sizes", "16M", "--vs", "openmpi,mpich", *turns]
    ours, peers = "ringreduce-shard,ddp-ringreduce", "ddp-gloo,horovod"
    for name, vs in (
        ("lenet", f"single,single-all,in-step,{peers}"),
        ("mlp", f"single,single-all,in-step,{ours},{peers}"),
        ("mlp adam", f"in-step,{ours},{peers}"),
    ):
        model, *optimizer = name.split()
        chosen = ["--optimizer", *optimizer] if optimizer else []
        found[f"train {name}"] = ["train", "--model", model, *chosen, "-np", "2", "--vs", vs, *turns]
    return found


def machine_name() -> str:
    """The processor and the number of cores, fit for a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", f"{processor()} {len(machine.allowed_cores())} cores".lower()).strip("-")


def markdown(record: dict[str, Any], name: str) -> str:
    """The record for people to read."""
    meta = record["meta"]
    where = f"{meta['cpu']}, {meta['cores_online']} cores, Linux {meta['kernel']}, {meta['isa']}"
    how = f"load average {meta['load_average']:.1f} at the start. Made by `{meta['command']}`."
    lines = [
        f"# {name}",
        "",
        f"{where}; ringreduce {meta['ringreduce']}; {how}",
        "",
        "## Promised figures",
        "",
        "| | figure | reached | promised |",
        "|---|---|---|---|",
        *(
            f"| {'ok' if one.reached else '**missed**'} | {one.what} | {one.value} | {one.promise} |"
            for one in targets.judge(record)
        ),
    ]
    for part, found in record["comparisons"].items():
        lines += ["", f"## {part}", "", "```", versus_table.tail(found), "```"]
    for part, found in record["training"].items():
        lines += ["", f"## {part}", "", "```", found["text"], "```"]
    return "\n".join(lines) + "\n"


def readme(record: dict[str, Any], path: Path) -> None:
    """Writes the README's table anew, between its markers."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(MARKERS[0])
    after = rest.split(MARKERS[1])[1]
    path.write_text(f"{before}{MARKERS[0]}\n{table(record)}\n{MARKERS[1]}{after}", encoding="utf-8")


def table(record: dict[str, Any]) -> str:
    """All-reduce at level c: ours, the best MPI, Gloo from Python, and how much faster ours is."""
    found = record["comparisons"]["allreduce"]
    lines = [
        "| size | registered, us | private, us | best MPI, us | registered / private against it | Gloo (Python), us |",
        "|---|---|---|---|---|---|",
    ]
    for nbytes in comparison.sizes(found):
        ours = [comparison.middle(found["results"], f"ringreduce {memory}", "c", nbytes) for memory in targets.MEMORY]
        best = [comparison.best(found["ratios"], f"ringreduce {memory}", "c", nbytes) for memory in targets.MEMORY]
        gloo = next(
            (competitor for competitor, _ in comparison.competitors(found) if competitor.startswith("gloo")), ""
        )
        theirs = comparison.middle(found["results"], gloo, "python", nbytes)
        if not all(ours) or not all(best):
            continue
        peer = comparison.middle(found["results"], best[1]["peer"], "c", nbytes)
        cells = [targets.size(nbytes), *(_us(one) for one in (*ours, peer))]
        cells += [" / ".join(f"{one['median']:.1f}x" for one in best), _us(theirs)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _us(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    time = row["time_us"]["p50"]
    return f"{time:.2f}" if time < 10 else f"{time:.1f}" if time < 100 else f"{time:.0f}"


def _bench(what: list[str]) -> tuple[dict[str, Any] | None, int]:
    """What a part found, None if it came to nothing, and its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "part.json")
        command = [sys.executable, "-m", "ringreduce.bench", *what, "--json", str(file)]
        print("#", " ".join(["ringreduce bench", *what]), flush=True)
        done = subprocess.run(command, check=False, timeout=DEADLINE_S, stdout=subprocess.PIPE, text=True)
        print(done.stdout, flush=True)
        found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
    if found is not None and what[0] == "train":
        found = {**found, "text": done.stdout.rstrip()}
    return found, done.returncode or int(found is None)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--only", type=lambda text: text.split(","), default=PARTS, metavar="LIST")
    parser.add_argument("--readme", action="store_true", help="rewrite the table in README.md")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
