"""ringreduce bench train -H over the lab's hosts: every mode that ringrun starts trains, and the others say why not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import HANG_S

from ringreduce.bench.train.cli import main
from ringreduce.bench.train.options import parse
from ringreduce.errors import InvalidArgumentError
from ringreduce.lab.lab import Done, Lab
from ringreduce.lab.mpi import settings
from ringreduce.lab.requirements import missing
from ringreduce.launch.python import run_module

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
HOSTS = "a:1,b:1"
STEPS = ["--check-steps", "2", "--warmup", "1", "--iters", "1", "--batches-per-iter", "2", "--rounds", "1"]
QUICK = ["--batch-size", "33", "--threads", "1", *STEPS]
"""33: the shares of two ranks differ."""


@pytest.fixture(name="lab", scope="module")
def two_hosts() -> Iterator[Lab]:
    with Lab(2) as lab:
        yield lab


def bench(lab: Lab, *words: str) -> Done:
    """The command on host a. Hosts of the lab share cores, so nothing is bound."""
    ssh = f"--ssh-args=-F {lab.ssh.parent / 'config'}"
    command = [*run_module("ringreduce.bench"), "train", *QUICK, "--bind", "none", ssh, *words]
    return lab.run("a", command, env=settings(lab.ssh), timeout_s=HANG_S)


def test_modes_on_two_hosts_reach_the_same_loss(lab: Lab) -> None:
    file = lab.folder / "train.json"
    vs = "ddp-ringreduce,ddp-gloo,mwms,horovod"
    done = bench(lab, "-H", HOSTS, "-np", "2", "--vs", vs, "--json", str(file))
    assert done.status == 0, done.output
    document = json.loads(file.read_text())
    rows = {row["mode"]: row for row in document["results"]}
    assert list(rows) == ["independent", "ringreduce", "ddp-ringreduce", "ddp-gloo"]
    for row in rows.values():
        (cell,) = row["rounds"]
        assert (row["status"], row["same_loss"], row["processes"]) == ("ok", True, 2), done.output
        assert cell["threads"] == [1, 1]
        assert len(cell["losses"]) == 3
    assert rows["ringreduce"]["loss"] == pytest.approx(rows["ddp-gloo"]["loss"], rel=1e-3)
    meta = document["meta"]
    assert (meta["hosts"], meta["bind"], meta["binding"], meta["data"]) == (HOSTS.split(","), "none", None, "synthetic")
    assert f"2 ranks on {HOSTS}, batch 33, synthetic" in done.output
    absent = {entry["mode"]: entry["why"] for entry in document["absent"]}
    assert absent.keys() == {"mwms", "horovod"}
    for mode, why in absent.items():
        assert "on one host" in why
        assert f"# {mode}: absent, {why}" in done.output.splitlines()


def test_one_process_stays_here_and_ranks_elsewhere(lab: Lab) -> None:
    done = bench(lab, "-H", "b:1", "--vs", "single,ddp-gloo", "--json", str(lab.folder / "one.json"))
    assert done.status == 0, done.output
    results = json.loads((lab.folder / "one.json").read_text())["results"]
    assert [(row["mode"], row["processes"], row["same_loss"]) for row in results] == [
        ("single", 1, True),
        ("independent", 1, True),
        ("ringreduce", 1, True),
        ("ddp-gloo", 1, True),
    ]


def test_a_host_that_cannot_be_reached_is_a_failure_that_says_so(lab: Lab) -> None:
    done = bench(lab, "-H", "a:1,nobody:1", "--vs", "none")
    assert done.status == 1
    assert "--- ringreduce, round 1: failed after" in done.output
    assert "nobody" in done.output


def test_hosts_that_make_no_sense() -> None:
    with pytest.raises(InvalidArgumentError, match="-np 3, and the hosts have 4 slots"):
        parse(["-H", "a:2,b:2", "-np", "3"])
    with pytest.raises(InvalidArgumentError, match="--ssh-args is for other hosts: say which by -H"):
        parse(["--ssh-args=-4"])
    with pytest.raises(InvalidArgumentError, match="--ssh-port is for other hosts, and this is the only one"):
        parse(["-H", "localhost:2", "-p", "22"])
    here = parse(["-H", "localhost:3"])
    assert (here.ranks, here.hosts, here.ringrun) == (3, (), ())
    there = parse(["-H", "a:2,b:2", "-i", "key", "--network-interface", "eth0"])
    words = ("-H", "a:2,b:2", "--ssh-identity-file=key", "--network-interface=eth0")
    assert (there.ranks, there.ringrun, there.bind) == (4, words, "core")


METHODS = {"fp16": (1 / 2, 0.01), "int8": (1 / 4, 0.05), "local-sgd": (1 / 2, 0.01)}
"""What a step sends, as a part of what it sends uncompressed, and the relative error of that."""


@pytest.mark.parametrize("methods", [["fp16"], pytest.param(list(METHODS), marks=pytest.mark.long)], ids=["one", "all"])
def test_link_makes_a_host_for_each_rank(methods: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.json"
    alone = ["single"] if len(methods) > 1 else []
    words = ["--link", "100mbit", "--method", ",".join(methods), "--vs", ",".join([*alone, "mwms"])]
    words += ["--every", "2"] if "local-sgd" in methods else []
    status = main([*QUICK, *words, "--data", "synthetic", "--json", str(file)])
    said = capfd.readouterr()
    assert status == 0, said.out + said.err
    document = json.loads(file.read_text())
    rows = {row["mode"]: row for row in document["results"]}
    assert list(rows) == [*alone, "independent", "ringreduce", *methods]
    for mode, row in rows.items():
        assert (row["status"], row["same_loss"], row["rounds"][0]["threads"][0]) == ("ok", True, 1), mode
    whole = rows["ringreduce"]["step_wire_nbytes"]
    assert whole == pytest.approx(4 * 129_094, rel=0.01), "of two hosts, each sends half twice"
    for method in methods:
        part, error = METHODS[method]
        assert rows[method]["step_wire_nbytes"] == pytest.approx(part * whole, rel=error), method
    meta = document["meta"]
    assert (meta["link"], meta["hosts"], meta["bind"]) == ("100mbit", ["a:1", "b:1"], "none")
    assert "links of 100mbit" in said.out
    assert [entry["mode"] for entry in document["absent"]] == ["mwms"]


def test_a_link_that_cannot_be_had_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--link", "slow", "--data", "synthetic"]) == 2
    assert re.search(r"UnavailableError: tc .*slow", capsys.readouterr().err, re.DOTALL)
