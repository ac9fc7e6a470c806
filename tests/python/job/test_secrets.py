"""No text that a user may see, or paste somewhere, holds a job's secret or a key."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

import ringreduce.job
from ringreduce import config
from ringreduce.doctor import environment as doctors
from ringreduce.errors import MismatchError
from ringreduce.job.deadline import Deadline
from ringreduce.job.environment import Placement
from ringreduce.job.places import TcpWanted
from ringreduce.job.tcp import job as tcp_job

SECRET = b"32 bytes that nobody else may see"
NAMES = ("secret", "groups_secret", "key", "fd_exchange")
"""Fields that hold one."""


def holders() -> Iterator[type]:
    """The classes of ringreduce.job with such a field."""
    for module in pkgutil.walk_packages(ringreduce.job.__path__, "ringreduce.job."):
        for one in vars(importlib.import_module(module.name)).values():
            is_here = isinstance(one, type) and one.__module__ == module.name
            if is_here and set(NAMES) & inspect.get_annotations(one).keys():
                yield one


def is_seen(text: str) -> bool:
    return SECRET.decode() in text or SECRET.hex() in text


@pytest.mark.parametrize("holder", list(holders()), ids=lambda holder: holder.__name__)
def test_what_holds_a_secret_does_not_show_it(holder: type[Any]) -> None:
    shown = holder(**{field: SECRET if field in NAMES else None for field in holder.__annotations__})
    assert not is_seen(repr(shown))
    assert not is_seen(f"{shown}")


def test_what_holds_a_secret_is_found() -> None:
    found = {holder.__name__ for holder in holders()}
    assert found >= {"TcpMeeting", "Met", "TcpWanted", "PlacedRanks", "Meeting", "FdExchange", "Proposal"}


TOLD = {"address": "10.0.0.1:29400", "secret": SECRET.hex()}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"where": "10.0.0.1:29400", "secret": SECRET.hex()}),
        json.dumps({"address": 29400, "secret": SECRET.hex()}),
        json.dumps(TOLD | {"secret": "0x" + SECRET.hex()}),
        json.dumps(TOLD | {"secret": [SECRET.hex()]}),
        json.dumps([TOLD["address"], SECRET.hex()]),
        json.dumps(SECRET.hex()),
        json.dumps(TOLD)[:-1],
        SECRET.decode(),
    ],
    ids=["other keys", "no address", "no hexadecimal", "no text", "list", "string", "cut off", "no JSON"],
)
def test_what_another_version_tells_is_refused_without_its_secret(text: str) -> None:
    place = Placement(1, 2, 0, 1, 1, 2, "openmpi", "")
    with pytest.raises(MismatchError, match="not this version of ringreduce") as caught:
        tcp_job._heard(text, place, TcpWanted("", "", "shm+tcp", None), "[rendezvous] rank 1/2", Deadline(1))
    error: BaseException | None = caught.value
    while error is not None:  # a traceback shows the causes too
        assert not is_seen(str(error))
        error = error.__cause__ or error.__context__


def given(value: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is shown of this RINGREDUCE_RENDEZVOUS."""
    monkeypatch.setenv("RINGREDUCE_RENDEZVOUS", value)
    (finding,) = [one for one in doctors.knobs() if one.name == "RINGREDUCE_RENDEZVOUS"]
    shown = config.value("RINGREDUCE_RENDEZVOUS").value
    assert finding.value.startswith(f"{shown} (")
    return shown


def test_the_settings_that_are_shown_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `ringrun -np 2 ringreduce doctor`, whose output is pasted into reports of faults."""
    assert given(f"ringrun-7-ab:{SECRET.hex()}", monkeypatch) == "ringrun-7-ab:(secret)"
    assert given(SECRET.hex(), monkeypatch) == "(secret)"
    assert config.value("RINGREDUCE_ADDRESS").value == ""


def test_a_job_shows_its_settings_without_its_secret(tmp_path: Path) -> None:
    shown = run_ranks(ends_for_lack_of_rank_1, 2, env={"RINGREDUCE_FAILURE_REPORTS": str(tmp_path)})
    secret, settings = shown[0]
    assert secret not in settings
    reports = [file.read_text() for file in tmp_path.iterdir()]
    assert not any(secret in report for report in reports)
    named = {json.loads(report)["settings"]["RINGREDUCE_RENDEZVOUS"] for report in reports}
    assert [name.rpartition(":")[2] for name in named] == ["(secret)"]


def ends_for_lack_of_rank_1() -> tuple[str, str]:
    """The job's secret, and what config.describe() shows while the job runs. Rank 0 fails."""
    import ringreduce as rr

    rr.init()
    secret = os.environ["RINGREDUCE_RENDEZVOUS"].rpartition(":")[2]
    settings = str(rr.config.describe())
    if rr.rank() == 0:
        with pytest.raises(rr.errors.HorovodInternalError):
            rr.allreduce([1.0], name="alone")
    rr.shutdown()
    return secret, settings
