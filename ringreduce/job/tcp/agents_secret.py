"""How an agent of ringrun (launch/remote) names the file with the job's secret, by which such a file is known."""

from __future__ import annotations

import re
import secrets

_PREFIX = "ringreduce.agent."
_NAME = re.compile(re.escape(_PREFIX) + "[0-9a-f]{16}")


def new_name() -> str:
    """A name that no file has."""
    return _PREFIX + secrets.token_hex(8)


def is_of_an_agent(path: str) -> bool:
    """Whether a secret's file is an agent's, and thus of one job only.

    >>> is_of_an_agent("/dev/shm/" + new_name()), is_of_an_agent("/home/me/.ringreduce-secret")
    (True, False)
    """
    return _NAME.fullmatch(path.rpartition("/")[2]) is not None
