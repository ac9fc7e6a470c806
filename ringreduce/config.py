"""The RINGREDUCE_* variables as the Python side sees them; the table itself is the core's (csrc/base/config.cc).

Everything is read when it is asked for, at init() at the earliest, never at import.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from ringreduce import _core, state
from ringreduce.errors import InvalidArgumentError
from ringreduce.horovod_variables import WITHOUT_EFFECT

PREFIX = "RINGREDUCE_"
FRAMEWORKS = frozenset({"ringreduce", "torch", "tensorflow", "keras", "tf_keras", "jax", "optax"})
"""Packages whose lines are no user's: what calls us in a step."""


class Knob(NamedTuple):
    """One variable, with its value as it is or would be read, but for a secret in it: shown() has left that out."""

    name: str
    value: str
    origin: str
    unit: str
    range: str
    default: str
    alias: str
    meaning: str


def describe() -> list[Knob]:
    """Every knob with its value and where the value comes from: "default", or the name of a variable.

    Of a running job the values are those read at init(); otherwise those that init() would read now.
    """
    settings = state.current.context.settings() if state.current is not None else []
    running = {name: (text, origin) for name, text, origin in settings}
    knobs = []
    for name, unit, range_, default, alias, meaning in _core.knobs():
        text, origin = running.get(name) or _read(name, alias, default, os.environ)
        knobs.append(Knob(name, shown(name, text), origin, unit, range_, default, alias, meaning))
    return knobs


def shown(name: str, text: str) -> str:
    """The value of a knob as anybody may see it. RINGREDUCE_RENDEZVOUS holds the job's secret.

    >>> shown("RINGREDUCE_RENDEZVOUS", "ringrun-7:00ff")
    'ringrun-7:(secret)'
    """
    if name != "RINGREDUCE_RENDEZVOUS" or not text:
        return text
    address, colon, _ = text.rpartition(":")
    return f"{address}{colon}(secret)"


def value(name: str) -> Knob:
    """One knob by its full name."""
    return next(knob for knob in describe() if knob.name == name)


def seconds(name: str) -> float:
    """The value of a knob in seconds. Raises InvalidArgumentError that names the variable."""
    return _seconds(value(name))


def others_seconds(name: str, environ: Mapping[str, str]) -> float:
    """As seconds(), of a process that is to have these variables."""
    row = next(row for row in _core.knobs() if row[0] == name)
    _, unit, range_, default, alias, meaning = row
    return _seconds(Knob(name, *_read(name, alias, default, environ), unit, range_, default, alias, meaning))


def _seconds(knob: Knob) -> float:
    low, high = (float(bound) for bound in knob.range.split(".."))
    try:
        number = float(knob.value)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise InvalidArgumentError(
            f"{knob.origin}={knob.value}: expected a number in {knob.range} ({knob.unit}), {knob.meaning}"
        )
    return number


def flag(name: str) -> bool:
    """The value of a 0|1 knob. Raises InvalidArgumentError that names the variable."""
    knob = value(name)
    if knob.value not in ("0", "1"):
        raise InvalidArgumentError(f"{knob.origin}={knob.value}: expected one of {knob.range}")
    return knob.value == "1"


def choice(name: str) -> str:
    """The value of an a|b|c knob, in lower case. Raises InvalidArgumentError that names the variable."""
    knob = value(name)
    word = knob.value.lower()
    if word not in knob.range.split("|"):
        raise InvalidArgumentError(f"{knob.origin}={knob.value}: expected one of {knob.range}")
    return word


def unknown(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The RINGREDUCE_* names that no knob has, each with the nearest name that one has."""
    known = [row[0] for row in _core.knobs()]
    strays = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if not strays:
        return {}
    from difflib import get_close_matches  # 2 ms, for this rare case only

    return {name: next(iter(get_close_matches(name, known, 1)), None) for name in strays}


def warn(environ: Mapping[str, str]) -> None:
    """Warns of unknown RINGREDUCE_* names, and once of all names that have no effect; shows the line that called us."""
    level = users_level()
    for name, nearest in unknown(environ).items():
        hint = f"did you mean {nearest}?" if nearest else "ringreduce.config.describe() lists the known ones"
        text = f"{name} is set, but ringreduce has no such variable; {hint}"
        warnings.warn(text, RuntimeWarning, stacklevel=level)
    unused = [f"{name} has no effect: {why}" for name, why in WITHOUT_EFFECT.items() if name in environ]
    if unused:
        warnings.warn(". ".join(unused), RuntimeWarning, stacklevel=level)


def users_level() -> int:
    """The stacklevel, for warnings of the function that asks, of the nearest frame outside of this and FRAMEWORKS."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in FRAMEWORKS:
        level, frame = level + 1, frame.f_back
    return level


def _read(name: str, alias: str, default: str, environ: Mapping[str, str]) -> tuple[str, str]:
    for variable in (name, alias):
        if variable and variable in environ:
            return environ[variable], variable
    return default, "default"
