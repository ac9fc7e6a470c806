"""docs/reference/knobs.md from the table of knobs in the core (csrc/base/config.cc).

Run by `make docs`, which writes the file; tests/python/project/test_package.py checks that it is up to date.
"""

import sys
from pathlib import Path

from ringreduce import _core

HEAD = """\
# Knobs

Environment variables, read at each `init()`. A bad value is an error that names the variable; an unknown `RINGREDUCE_*`
name is a warning with the nearest match. A Horovod name is read where ours is unset, in the same unit. Written by
`make docs` from the table in `csrc/base/config.cc`.

| variable | unit | range | default | Horovod's name | meaning |
|---|---|---|---|---|---|
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def render() -> str:
    rows = (
        f"| {code(name)} | {cell(unit)} | {code(span)} | {code(default)} | {code(alias)} | {cell(meaning)} |\n"
        for name, unit, span, default, alias, meaning in _core.knobs()
    )
    return HEAD + "".join(rows)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
