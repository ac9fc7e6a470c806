"""What each process of a job has measured: one line of its standard output, in which the command looks for it.

Ranks on other hosts have no file in common with the command. The line begins with a mark that no other job has. The
launcher may have put a tag before it.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from ringreduce.errors import Error


def new_mark() -> str:
    """A mark for one job."""
    return f"RINGREDUCE_TRAIN_{secrets.token_hex(16)}"


def say(mark: str, result: dict[str, Any]) -> None:
    """In a process of the job: prints what it has measured. "rank" in it says whose it is."""
    # The line that the training may have begun ends first.
    print(f"\n{mark} {json.dumps(result)}", flush=True)


def find(mark: str, output: str, processes: int) -> list[dict[str, Any]]:
    """What so many processes have said, by rank. Raises Error for a rank that has said nothing, or no JSON."""
    results: dict[int, dict[str, Any]] = {}
    for text in _line(mark).findall(output):
        try:
            result = json.loads(text)
        except ValueError as error:
            raise Error(f"a rank's figures are no JSON ({error}): {text[:100]}") from error
        results[result["rank"]] = result
    missing = [rank for rank in range(processes) if rank not in results]
    if missing:
        raise Error(f"no figures of rank {', '.join(map(str, missing))} of {processes} were found in its output")
    return [results[rank] for rank in range(processes)]


def without(mark: str, output: str) -> str:
    """The rest of the output."""
    return _line(mark).sub("", output)


def _line(mark: str) -> re.Pattern[str]:
    """The line after the mark. The mark alone is no line: the command line of a process has it too."""
    return re.compile(rf"^.*{mark} (\{{.*)$\n?", re.MULTILINE)
