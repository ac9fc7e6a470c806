"""The promised figures (docs/reference/benchmarks.md, 'What is promised') and whether a record reaches them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ringreduce.bench import comparison

K, M = 1 << 10, 1 << 20
MEMORY = ("registered", "private")
MPIS = ("openmpi", "mpich")
UNMEASURED = "not measured"


@dataclass(frozen=True)
class Judgement:
    """One promised figure."""

    what: str
    value: str
    promise: str
    reached: bool


RATIOS: tuple[tuple[str, tuple[int, ...], float, tuple[str, ...]], ...] = (
    ("registered", (M, 2 * M, 16 * M, 128 * M), 3.0, MPIS),
    ("private", (64 * K, 256 * K, M, 2 * M, 16 * M), 0.95, MPIS),
    ("private", (128 * M,), 2.0, MPIS),
    ("private", (8, 512, 4 * K), 1.0, ("openmpi",)),
    ("registered", (M, 2 * M, 16 * M), 10.0, ("gloo",)),
    ("registered", (128 * M,), 8.0, ("gloo",)),
    ("private", (64 * K, 256 * K, M, 2 * M, 16 * M), 5.0, ("gloo",)),
    ("private", (128 * M,), 4.0, ("gloo",)),
)
"""All-reduce: on this memory, at these sizes, at least so many times as fast as the best of these libraries."""

LIMIT = (("registered", (M, 2 * M, 16 * M, 128 * M), 0.85),)
SMALL = (
    ("allreduce", 2, "p50", 3.0),
    ("small 4 ranks", 4, "p50", 15.0),
    ("small 4 ranks", 4, "p99", 1000.0),
    ("small 8 ranks", 8, "p50", 30.0),
    ("small 8 ranks", 8, "p99", 1000.0),
)
"""(part, ranks, percentile, most us) of 8 bytes from Python."""

COLLECTIVE_LIMIT = 0.75
TRAINING = (
    ("train lenet", "ringreduce", 0.97),
    ("train mlp", "ringreduce", 0.90),
    ("train mlp", "ringreduce-shard", 0.90),
    ("train mlp adam", "ringreduce-shard", 1.15),
)
"""(part, mode, least fraction of the communication-free bound)."""

DDP = ("train mlp", 1.2)
"""(part, least ratio of DDP on our process group to DDP on Gloo)."""


def judge(record: dict[str, Any]) -> list[Judgement]:
    """Every promise about the record's parts. One without its figure is missed, but for libraries that are not here."""
    found, found_training = record["comparisons"], record["training"]
    judged: list[Judgement] = []
    if "allreduce" in found:
        judged += _ratios(found["allreduce"])
        judged += _limits(found["allreduce"])
    for part, ranks, key, most in SMALL:
        if part in found and 8 in comparison.sizes(found[part]):
            row = comparison.middle(found[part]["results"], "ringreduce private", "python", 8)
            time = row["time_us"][key] if row else None
            what = f"8 B from Python, {ranks} ranks, {key}"
            said = UNMEASURED if time is None else f"{time:.2f} us"
            judged.append(Judgement(what, said, f"<= {most:g} us", time is not None and time <= most))
    for part, one in found.items():
        if part.startswith("collectives "):
            judged += _collective(part.split()[1], one)
    for part, mode, least in TRAINING:
        if part in found_training:
            fraction = _of_mode(found_training[part], mode, "fraction_of_bound")
            what = f"{part}, {mode}: fraction of the communication-free bound"
            judged.append(_at_least(what, fraction, least, ".3f"))
    part, least = DDP
    ours, theirs = (_of_mode(found_training.get(part), f"ddp-{who}", "samples_per_s") for who in ("ringreduce", "gloo"))
    if any(row["mode"] == "ddp-gloo" for row in found_training.get(part, {"results": []})["results"]):
        ratio = ours / theirs if ours and theirs else None
        judged.append(_at_least(f"{part}: DDP on ringreduce beside DDP on Gloo", ratio, least, ".2f", "x"))
    return judged


def _at_least(what: str, value: float | None, least: float, digits: str, unit: str = "") -> Judgement:
    said = UNMEASURED if value is None else f"{value:{digits}}{unit}"
    return Judgement(what, said, f">= {least:g}{unit}", value is not None and value >= least)


def size(nbytes: int) -> str:
    """Such as "8 B", "64 KiB", "2 MiB"."""
    for unit, name in ((M, "MiB"), (K, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def _ratios(found: comparison.Document) -> Iterator[Judgement]:
    for memory, sizes, least, libraries in RATIOS:
        here = [one for one in libraries if any(one == name.split()[0] for name in _competitors(found))]
        for nbytes in sizes:
            ratios = [r for r in _ratios_of(found, memory, nbytes) if r["peer"].split()[0] in libraries]
            hardest = min(ratios, key=lambda ratio: float(ratio["median"]), default=None)
            what = f"all-reduce, {memory}, {size(nbytes)}, beside "
            if hardest:
                yield _at_least(what + hardest["peer"], hardest["median"], least, ".2f", "x")
            elif here and nbytes in comparison.sizes(found):
                yield _at_least(what + " and ".join(here), None, least, ".2f", "x")


def _competitors(found: comparison.Document) -> set[str]:
    return {cell["competitor"] for cell in found["cells"] if cell["status"] != "unsupported"}


def _ratios_of(found: comparison.Document, memory: str, nbytes: int) -> Iterable[dict[str, Any]]:
    ours = f"ringreduce {memory}"
    return (r for r in found["ratios"] if (r["ours"], r["nbytes"]) == (ours, nbytes))


def _limits(found: comparison.Document) -> Iterator[Judgement]:
    for memory, sizes, least in LIMIT:
        for nbytes in filter(comparison.sizes(found).__contains__, sizes):
            row = comparison.middle(found["results"], f"ringreduce {memory}", "c", nbytes)
            what = f"all-reduce, {memory}, {size(nbytes)}: fraction of the memory's limit"
            yield _at_least(what, row and row["fraction_of_limit"], least, ".2f")


def _collective(name: str, found: comparison.Document) -> Iterator[Judgement]:
    nbytes = comparison.sizes(found)[0]
    row = comparison.middle(found["results"], "ringreduce registered", "c", nbytes)
    what = f"{name}, registered, {size(nbytes)}: fraction of its limit"
    yield _at_least(what, row and row["fraction_of_limit"], COLLECTIVE_LIMIT, ".2f")
    peers = sorted(who for who in _competitors(found) if not comparison.is_ours(who))
    for memory in MEMORY:
        hardest = comparison.best(found["ratios"], f"ringreduce {memory}", "c", nbytes)
        if hardest or peers:
            what = f"{name}, {memory}, {size(nbytes)}, beside {hardest['peer'] if hardest else ' and '.join(peers)}"
            yield _at_least(what, hardest and hardest["median"], 1, ".2f", "x")


def _of_mode(found: dict[str, Any] | None, mode: str, key: str) -> float | None:
    rows = [row for row in found["results"] if row["mode"] == mode] if found else []
    return rows[0].get(key) if rows else None
