"""An agent of ringrun that does what a test says: python fake_agent.py FOLDER HOST.

It speaks as ringreduce/launch/remote/agent.py does, and starts nothing. FOLDER/HOST.json says how it differs:
    after: {kind that it gets or "READY": [what it does then]}, instead of what is right
What it does: "KIND" is the right message, ["KIND", fields] another one, "end" makes FOLDER/HOST.end and ends it,
"nothing" is nothing, "wait" is to wait for FOLDER/HOST.go.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from ringreduce import _core
from ringreduce.launch.remote.messages import GREETING, OUTPUT, Kind, Unpacker, packed

RIGHT = {
    "READY": ["READY"],
    "LISTEN": ["LISTENING"],
    "TRY": ["TRIED"],
    "START": ["STARTED", "EXIT"],
    "FINISH": ["DONE", "end"],
}


def path_with_ssh(folder: Path, script: str) -> dict[str, str]:
    """A PATH on which a shell script comes first for ssh. Its $WORDS are what the host would run."""
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\nfor WORDS; do :; done\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def main(folder: Path, host: str) -> None:
    steps = RIGHT | json.loads((folder / f"{host}.json").read_text())
    os.write(1, GREETING)
    act(steps["READY"], folder, host, {})
    unpacker = Unpacker()
    places: list[Any] = []
    while data := os.read(0, 1 << 16):
        for kind, body in unpacker.feed(data):
            if kind in (Kind.INPUT, Kind.CALL):
                continue
            order = json.loads(body)
            places = order.get("places", places)
            (folder / f"{host}.{kind.name}").touch()
            act(steps.get(kind.name, []), folder, host, order | {"places": places})


def act(steps: list[Any], folder: Path, host: str, order: dict[str, Any]) -> None:
    for step in steps:
        if step == "end":
            (folder / f"{host}.end").touch()
            sys.exit(1)
        while step == "wait" and not (folder / f"{host}.go").exists():
            time.sleep(0.01)
        if step not in ("nothing", "wait"):
            for message in [right(step, host, order)] if isinstance(step, str) else [[step]]:
                for name, fields in message:
                    os.write(1, said(name, fields))


def said(name: str, fields: Any) -> bytes:
    if name.startswith("OUTPUT"):
        rank, stream, text = fields
        return packed(Kind[name], OUTPUT.pack(rank, stream) + text.encode())
    return packed(Kind[name], fields.encode() if isinstance(fields, str) else fields)


def right(name: str, host: str, order: dict[str, Any]) -> list[tuple[str, Any]]:
    """The right messages of a kind."""
    ranks = [place[0] for place in order.get("places", [])]
    if name == "READY":
        facts = {"version": _core.__version__, "name": host, "identity": host, "seen_from": "", "seen_at": ""}
        return [(name, facts | {"addresses": [["eth0", "192.0.2.1"]]})]
    if name == "LISTENING":
        return [(name, {"addresses": [[ip, 1] for ip in order["hosts"]], "refused": []})]
    if name == "TRIED":
        return [(name, {"reasons": ["" for _ in order["addresses"]]})]
    if name == "STARTED":
        return [(name, {"rank": rank, "pid": 1, "cpus": None, "threads": "1"}) for rank in ranks]
    if name == "EXIT":
        return [(name, {"rank": rank, "status": 0, "milliseconds": 1}) for rank in ranks]
    return [(name, {})]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
