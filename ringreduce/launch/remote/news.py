"""What an agent says, checked: whatever bytes it sends, they become one of these records or a MismatchError."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from ringreduce.errors import MismatchError
from ringreduce.launch.remote.messages import OUTPUT, RESULT, Kind

TEXT_CHARS = 4096
LIST_ITEMS = 4096


@dataclass(frozen=True)
class Ready:
    """What a host is."""

    version: str
    """Of ringreduce there."""
    name: str
    identity: str
    """Another one for each host."""
    seen_from: str
    """ringrun's host's address, as this host sees it; "" if ssh has not brought us there."""
    seen_at: str
    """This host's address, as ssh has reached it; or ""."""
    addresses: list[tuple[str, str]]
    """Interface and IP address."""


@dataclass(frozen=True)
class Listening:
    """Where rank 0's host can perhaps be found, and why not elsewhere."""

    addresses: list[tuple[str, int]]
    refused: dict[str, str]


@dataclass(frozen=True)
class Tried:
    """For each address that was tried: why not, or ""."""

    reasons: list[str]


@dataclass(frozen=True)
class Started:
    """A rank runs."""

    rank: int
    pid: int
    cpus: list[int] | None
    threads: str


@dataclass(frozen=True)
class CannotRun:
    """The program cannot be run; is_missing: because it is not there."""

    text: str
    is_missing: bool


@dataclass(frozen=True)
class Output:
    """What a rank has written to stream 1, 2 or RESULT; None: nothing more will come."""

    rank: int
    stream: int
    data: bytes | None


@dataclass(frozen=True)
class Cause:
    """The exception that ends a rank."""

    rank: int
    text: str


@dataclass(frozen=True)
class Exit:
    """A rank has ended, so long after its start; status: -N if killed by signal N."""

    rank: int
    status: int
    seconds: float


@dataclass(frozen=True)
class InputTaken:
    """Rank 0 has taken the last piece of its input; is_last: and takes no more."""

    is_last: bool


@dataclass(frozen=True)
class Done:
    """The agent has said all."""


News: TypeAlias = Ready | Listening | Tried | Started | CannotRun | Output | Cause | Exit | InputTaken | Done


def parsed(kind: Kind, body: bytes) -> News:
    """The record of a message. Raises MismatchError."""
    if kind in (Kind.OUTPUT, Kind.OUTPUT_END):
        return _output(kind, body)
    if kind in (Kind.INPUT_TAKEN, Kind.INPUT_CLOSED):
        return InputTaken(kind == Kind.INPUT_CLOSED)
    if kind == Kind.DONE:
        return Done()
    try:
        fields = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise MismatchError(f"{kind.name} is no JSON") from None
    if not isinstance(fields, dict):
        raise MismatchError(f"{kind.name} has no fields")
    return _record(kind, _Fields(kind, fields))


def _record(kind: Kind, of: _Fields) -> News:
    if kind == Kind.READY:
        version, name, identity = of.text("version"), of.text("name"), of.text("identity")
        addresses = [(str(interface), str(ip)) for interface, ip in of.pairs("addresses", str, str)]
        return Ready(version, name, identity, of.text("seen_from"), of.text("seen_at"), addresses)
    if kind == Kind.LISTENING:
        refused = {str(ip): str(why) for ip, why in of.pairs("refused", str, str)}
        return Listening([_address(str(ip), int(port)) for ip, port in of.pairs("addresses", str, int)], refused)
    if kind == Kind.TRIED:
        return Tried([str(reason) for reason in of.items("reasons", str)])
    if kind == Kind.STARTED:
        cpus = None if of.fields.get("cpus") is None else [int(cpu) for cpu in of.items("cpus", int)]
        return Started(of.number("rank"), of.number("pid"), cpus, of.text("threads"))
    if kind == Kind.CANNOT_RUN:
        return CannotRun(of.text("text"), of.fields.get("is_missing") is True)
    if kind == Kind.CAUSE:
        return Cause(of.number("rank"), of.text("text"))
    if kind == Kind.EXIT:
        status, seconds = of.number("status", -128, 255), of.number("milliseconds", 0, 1 << 52) / 1e3
        return Exit(of.number("rank"), status, seconds)
    raise MismatchError(f"{kind.name} is for agents")


def _address(ip: str, port: int) -> tuple[str, int]:
    """What other hosts' agents are to try. Raises MismatchError."""
    try:
        ipaddress.ip_address(ip)
    except ValueError:
        raise MismatchError(f"LISTENING at {ip[:64]!r}, which is no address") from None
    if not 0 < port < 1 << 16:
        raise MismatchError(f"LISTENING at port {port}")
    return ip, port


def _output(kind: Kind, body: bytes) -> Output:
    if len(body) < OUTPUT.size:
        raise MismatchError(f"{kind.name} of {len(body)} bytes")
    rank, stream = OUTPUT.unpack_from(body)
    if stream not in (1, 2, RESULT):
        raise MismatchError(f"{kind.name} of stream {stream}")
    return Output(rank, stream, body[OUTPUT.size :] if kind == Kind.OUTPUT else None)


class _Fields:
    """Fields of one message, each of the type that it has to have."""

    def __init__(self, kind: Kind, fields: dict[str, Any]) -> None:
        self.fields = fields
        self._kind = kind

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str) or len(value) > TEXT_CHARS:
            self._wrong(name)
        return value

    def number(self, name: str, least: int = 0, most: int = (1 << 31) - 1) -> int:
        value = self.fields.get(name)
        if type(value) is not int or not least <= value <= most:
            self._wrong(name)
        return value

    def items(self, name: str, kind: type) -> list[Any]:
        value = self.fields.get(name)
        if not isinstance(value, list) or len(value) > LIST_ITEMS or not all(type(item) is kind for item in value):
            self._wrong(name)
        return value

    def pairs(self, name: str, first: type, second: type) -> list[list[Any]]:
        value = self.items(name, list)
        if not all(len(pair) == 2 and type(pair[0]) is first and type(pair[1]) is second for pair in value):
            self._wrong(name)
        return value

    def _wrong(self, name: str) -> NoReturn:
        raise MismatchError(f"{self._kind.name} with the field {name} as none of ringreduce's has it")


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)
