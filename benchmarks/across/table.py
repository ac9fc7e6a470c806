"""The figures for people: the table as text, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import promises
from .figures import Row, layout, size

_FORMAT = "#{:>10}  {:<38} {:>9} {:>9} {:>9} {:>9} {:>6} {:>8} {:>8} {:>9} {:>9} {:>7}  {}"
_COLUMNS = {  # name: unit
    "size": "(B)",
    "competitor": "",
    "time": "(ms)",
    "p10": "(ms)",
    "p90": "(ms)",
    "limit": "(ms)",
    "of it": "",
    "ours is": "",
    "CPU": "(s/GB)",
    "sent": "(MB/host)",
    "must be": "(MB/host)",
    "#wrong": "",
    "": "",
}


def text(meta: dict[str, Any], rows: Sequence[Row]) -> str:
    """All of it: where and how, a block for each layout, the bytes of every host, the verdict."""
    lines = head(meta)
    for each in dict.fromkeys(row.each for row in rows):
        block = [row for row in rows if row.each == each]
        lines += ["#", f"# {layout(block[0])}: medians of {meta['rounds']} rounds"]
        lines += [_FORMAT.format(*words).rstrip() for words in (_COLUMNS, _COLUMNS.values())]
        lines += [_line(row, meta["rounds"]) for row in block]
        lines += ["#", "# MB sent for one call, by host"]
        lines += [f"#{row.nbytes:>10}  {row.competitor[:38]:<38} {_by_host(row)}" for row in block if row.sent]
    wrong = sum(row.wrong for row in rows)
    void = sum(row.status == "void" for row in rows)
    for one in promises.judge(rows, meta["rate"]):
        lines.append(f"# {'ok    ' if one.reached else 'MISSED'} {one.what}: {one.value}, promised {one.promise}")
    lines += ["#", f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]
    lines.append(f"# Void measurements    : {void} {'FAILED' if void else 'OK'}")
    return "\n".join(lines)


def head(meta: dict[str, Any]) -> list[str]:
    """The comment lines above: what is measured, on what, by what, and who is not here."""
    goodput = meta["goodput"]
    spread = f"{goodput['p10'] / 1e6:.2f} to {goodput['p90'] / 1e6:.2f}"
    what = f"{meta['hosts']} hosts, links of {meta['rate']}: all-reduce of float32 (sum), in place, from Python"
    return [
        f"# ringreduce {meta['ringreduce']} across {what}",
        f"# {meta['cpu']}, {meta['cores_online']} cores for all hosts, Linux {meta['kernel']}, {meta['isa']}",
        f"# goodput of a link, one TCP stream: {goodput['median'] / 1e6:.2f} MB/s (p10 to p90: {spread})",
        *(f"# {competitor['competitor']}: {_who(competitor, meta)}" for competitor in meta["competitors"]),
        *(f"# absent: {name}: {advice}" for name, advice in meta["absent"].items()),
    ]


def markdown(meta: dict[str, Any], rows: Sequence[Row]) -> str:
    """A page of a table for each layout."""
    lines = ["# All-reduce across hosts", "", *(f"{line[2:]}  " for line in head(meta))]
    lines += ["", f"Made by `{meta['command']}` at {meta['date']}."]
    for each in dict.fromkeys(row.each for row in rows):
        block = [row for row in rows if row.each == each]
        lines += ["", f"## {layout(block[0])}", ""]
        lines.append(
            "| size | competitor | time, ms | p10 to p90 | limit, ms | fraction of limit | ours is | CPU, s/GB "
            "| sent, MB a host | must be | wrong |"
        )
        lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
        lines += [_markdown_line(row, meta["rounds"]) for row in block]
    lines += ["", "## Promised figures", "", "| | figure | reached | promised |", "|---|---|---|---|"]
    lines += [
        f"| {'ok' if one.reached else '**missed**'} | {one.what} | {one.value} | {one.promise} |"
        for one in promises.judge(rows, meta["rate"])
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row, rounds: int) -> str:
    if row.time_s is None:
        return f"{row.nbytes:>11}  {row.competitor[:38]:<38} {row.status}"
    times = [_ms(time) for time in (row.time_s, row.p10_s, row.p90_s, row.limit_s)]
    fraction, ours = f"{row.fraction_of_limit:.3f}", _ratio(row)
    crossed = [f"{nbytes / 1e6:.4f}" for nbytes in (_mean_sent(row), row.must_send)]
    return " " + _FORMAT[1:].format(
        row.nbytes, row.competitor[:38], *times, fraction, ours, _cpu(row), *crossed, row.wrong, _note(row, rounds)
    ).rstrip()  # fmt: skip


def _markdown_line(row: Row, rounds: int) -> str:
    if row.time_s is None:
        cells = [size(row.nbytes), row.competitor, row.status, *[""] * 8]
    else:
        spread = f"{_ms(row.p10_s)} to {_ms(row.p90_s)}"
        crossed = [f"{nbytes / 1e6:.4f}" for nbytes in (_mean_sent(row), row.must_send)]
        name = " ".join([row.competitor, *[f"**{note}**" for note in [_note(row, rounds)] if note]])
        cells = [size(row.nbytes), name, _ms(row.time_s), spread, _ms(row.limit_s), f"{row.fraction_of_limit:.3f}"]
        cells += [_ratio(row), _cpu(row), *crossed, str(row.wrong)]
    return f"| {' | '.join(cells)} |"


def _note(row: Row, rounds: int) -> str:
    few = f"{row.rounds} of {rounds} rounds" if row.rounds < rounds else ""
    return ", ".join(word for word in ("VOID" if row.status == "void" else "", few) if word)


def _who(competitor: dict[str, Any], meta: dict[str, Any]) -> str:
    settings = " ".join(f"{name}={value}" for name, value in competitor["environ"].items())
    over = f"over {competitor['over']}, " if competitor["over"] and competitor["call"] else ""
    call = f"{competitor['call']}, " if competitor["call"] else ""
    return f"{call}{over}{meta['versions'].get(competitor['competitor'], 'not measured')} {settings}".rstrip()


def _by_host(row: Row) -> str:
    assert row.sent is not None
    return "  ".join(f"{host} {nbytes / 1e6:.4f}" for host, nbytes in row.sent.items())


def _mean_sent(row: Row) -> float:
    assert row.sent is not None
    return sum(row.sent.values()) / len(row.sent)


def _ratio(row: Row) -> str:
    return "-" if row.ours_is is None else f"{row.ours_is:.2f}x"


def _cpu(row: Row) -> str:
    return "-" if row.cpu_s_per_gb is None else f"{row.cpu_s_per_gb:.2f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"
