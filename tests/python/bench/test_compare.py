"""benchmarks/compare.py: verdicts on rounds, who gets more rounds, the trees, and a run of a build beside itself."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from processes import completed

from ringreduce.lab.requirements import missing

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def rounds(new: float, noise: Sequence[float] = (1, 1, 1, 1, 1, 1)) -> list[Any]:
    """The old build takes 100 us, the second time `noise` times as long; the new one `new` times the old."""
    from builds.verdict import Round

    return [Round(100 / each**0.5, 100 * new, 100 * each**0.5) for each in noise]


def test_a_difference_counts_beyond_five_percent_and_beyond_the_old_builds_own() -> None:
    from builds.verdict import judge

    quiet, noisy = [1.01, 0.99, 1, 1.02, 1, 1], [1.2, 0.8, 1.1, 0.9, 1.15, 1.3]
    verdicts = {(new, judge(rounds(new, quiet)).verdict) for new in (0.9, 0.96, 1, 1.04, 1.1)}
    assert verdicts == {
        (0.9, "faster"),
        (0.96, "no difference"),
        (1, "no difference"),
        (1.04, "no difference"),
        (1.1, "slower"),
    }
    assert judge(rounds(1.1, noisy)).verdict == judge(rounds(0.9, noisy)).verdict == "no difference"
    assert judge(rounds(1.5, noisy)).verdict == "slower"


def test_few_rounds_say_nothing() -> None:
    from builds.verdict import judge

    assert [judge(rounds(2, [1] * count)).verdict for count in (1, 2, 3)] == ["not judged", "not judged", "slower"]


def test_the_judgement_shows_the_medians_and_the_noise() -> None:
    from builds.verdict import judge

    found = judge(rounds(1.5, [1, 1.1, 1 / 1.2, 1, 1, 3]))
    assert (found.rounds, found.new_us) == (6, 150)
    assert found.old_us == pytest.approx(100)
    assert found.ratio == pytest.approx(1.5)
    assert found.spread == pytest.approx(1.2)  # as a factor above 1, and without the widest


def test_the_widest_quarter_of_the_noise_is_left_out() -> None:
    from builds.verdict import SUSPECT_WITHIN, spread

    assert [spread(list(range(1, n + 1))) for n in (1, 3, 4, 6, 18)] == [1, 3, 3, 5, 14]
    assert [spread(list(range(1, n + 1)), SUSPECT_WITHIN) for n in (1, 6, 18)] == [1, 4, 11]


def simulated(generator: random.Random, count: int, change: float, sigma: float) -> list[Any]:
    """Rounds as a shared machine gives them: a common drift, lognormal noise, and now and then a disturbed turn."""
    from builds.verdict import Round

    def turn(drift: float) -> float:
        disturbed = 1 + generator.random() if generator.random() < 0.08 else 1.0
        return generator.lognormvariate(drift, sigma) * disturbed

    drifts = [generator.gauss(0, 0.3) for _ in range(count)]
    return [Round(turn(drift), turn(drift) * change, turn(drift)) for drift in drifts]


def compared(generator: random.Random, change: float, sigma: float) -> str:
    """The verdict as Turns reaches it: six rounds, and twelve more where there is a doubt."""
    from builds.verdict import SUSPECT_WITHIN, judge

    seen = simulated(generator, 6, change, sigma)
    if judge(seen, SUSPECT_WITHIN).verdict != "no difference":
        seen += simulated(generator, 12, change, sigma)
    return judge(seen).verdict


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2])
def test_noise_alone_is_no_difference(sigma: float) -> None:
    """A full comparison has 70 cases: with 3 of 7000 it would say something wrong in 3 of 100 runs."""
    generator = random.Random(1)
    alarms = sum(compared(generator, 1, sigma) != "no difference" for _ in range(7000))
    print(f"sigma {sigma}: {alarms} false alarms in 7000 cases")
    assert alarms <= 3


@pytest.mark.parametrize(("change", "sigma"), [(1.08, 0.01), (1.15, 0.03), (1.4, 0.1)])
def test_what_is_slower_is_found(change: float, sigma: float) -> None:
    generator = random.Random(2)
    found = sum(compared(generator, change, sigma) == "slower" for _ in range(500))
    print(f"{change} at sigma {sigma}: {found} of 500")
    assert found >= 400


class Pretence:
    """A group whose times are given by a function of tree name, order and turn."""

    def __init__(self, time: Callable[[str, str, int], float | None], name: str = "pretence") -> None:
        self.name, self.asked = name, []
        self._time = time

    def run(self, tree: Any, orders: Sequence[str]) -> dict[str, dict[str, float]]:
        from builds.turns import TurnError

        turn = len(self.asked)
        self.asked.append((tree.name, tuple(orders)))
        times = {order: self._time(tree.name, order, turn) for order in orders}
        if all(time is None for time in times.values()):
            raise TurnError("exit status 1")
        return {order: {"call": time} for order, time in times.items() if time is not None}


def turns(keep: Callable[[], None] = lambda: None) -> Any:
    from builds.trees import Tree
    from builds.turns import AGAIN, NEW, OLD, Turns

    old, new = (Tree(name, name, Path("/", name)) for name in ("before", "after"))
    return Turns({OLD: old, NEW: new, AGAIN: old}, keep)


def test_what_seems_to_differ_gets_more_rounds_and_is_judged_by_all() -> None:
    from builds.turns import Case

    def time(tree: str, order: str, turn: int) -> float:
        # Six rounds have 18 turns. "unlucky" is slower in the first four rounds only, "slow" in all.
        slower = tree == "after" and (order == "slow" or (order == "unlucky" and turn < 12))
        return 20.0 if slower else 10.0

    group, kept = Pretence(time), []
    run = turns(lambda: kept.append(1))
    found = run.measure([Case(group, order) for order in ("same", "unlucky", "slow")], rounds=6, more=12)
    verdicts = {name: (one.verdict, one.rounds) for name, one in found.items()}
    assert verdicts == {
        "pretence same": ("no difference", 6),
        "pretence unlucky": ("no difference", 18),
        "pretence slow": ("slower", 18),
    }
    assert group.asked[17][1] == ("same", "unlucky", "slow")
    assert {orders for _, orders in group.asked[18:]} == {("unlucky", "slow")}
    assert len(run.runs) == len(group.asked) == 3 * 18  # every turn is kept
    assert len(kept) == 18


def test_everyone_has_every_place_as_often_as_the_others() -> None:
    from builds.turns import Case

    run = turns()
    run.measure([Case(Pretence(lambda *_: 1.0), "8")], rounds=6, more=0)
    orders = {number: tuple(one.side for one in run.runs if one.round == number) for number in range(6)}
    assert len(set(orders.values())) == 6
    assert {one.place for one in run.runs if one.side == "new"} == {0, 1, 2}
    began = [one.began for one in run.runs]
    assert began == sorted(began)


def test_a_build_that_fails_is_told_and_not_tried_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    from builds import table
    from builds.turns import Case

    fails = Pretence(lambda tree, *_: None if tree == "after" else 5.0, "broken")
    lacks = Pretence(lambda tree, order, _: None if tree == "before" and order == "added" else 5.0, "grown")
    run = turns()
    found = run.measure([Case(fails, "8"), Case(lacks, "8"), Case(lacks, "added")], rounds=6, more=12)
    assert {name: one.verdict for name, one in found.items()} == {
        "broken 8": "new fails",
        "grown 8": "no difference",
        "grown added": "not judged",
    }
    assert len(fails.asked) == 6  # two rounds
    assert [one.failure for one in run.runs if one.group == "broken" and one.side == "new"] == ["exit status 1"] * 2
    assert table.status(found) == 1
    assert table.text(found).endswith("\nnew fails: broken 8")
    assert "# broken, new: exit status 1" in capsys.readouterr().err


def test_a_new_build_that_fails_now_and_then_fails() -> None:
    from builds.turns import Case

    # Turns 9 and 14 are the new build's in rounds 3 and 4; the others of these rounds are there.
    group = Pretence(lambda _, order, turn: None if turn in (9, 14) and order == "shaky" else 5.0)
    run = turns()
    found = run.measure([Case(group, "shaky"), Case(group, "firm")], rounds=6, more=12)
    assert [group.asked[turn][0] for turn in (9, 14)] == ["after", "after"]
    assert {name: one.verdict for name, one in found.items()} == {
        "pretence shaky": "new fails",
        "pretence firm": "no difference",
    }


def test_the_last_line_is_the_verdict() -> None:
    from builds import table
    from builds.verdict import judge

    same, slow, fast = judge(rounds(1)), judge(rounds(1.2)), judge(rounds(0.5))
    assert table.last_line({"a": same, "b": same}) == "no difference"
    assert table.last_line({"a": slow, "b": fast, "c": same}) == "slower: a (1.20x); faster: b (0.50x)"
    assert [table.status({"a": same, "b": one}) for one in (same, slow, fast)] == [0, 1, 0]
    assert (table.last_line({}), table.status({})) == ("nothing was judged", 1)
    noisy = judge(rounds(1, [1.3] * 6))
    lines = table.text({"loud": noisy, "quiet": same}).splitlines()
    assert lines[0].split() == ["case", "old,", "us", "new,", "us", "new", "/", "old", "spread", "rounds", "verdict"]
    assert lines[1].split() == ["loud", "100.9", "100.0", "1.000", "1.300", "6", "no", "difference", "(noisy)"]
    assert "noisy: a spread above 10%, so that a change of that size is not seen: 1 cases" in lines
    assert lines[-1] == "no difference"


def test_cases_are_the_promised_ones() -> None:
    import record
    from builds import cases
    from builds.hosts import Hosts

    assert ",".join(cases.SIZES) == record.SIZES
    everything = [*cases.here(), *cases.across(Hosts(4)), *cases.across_of_several(Hosts(4, 2))]
    names = [case.name for case in everything]
    assert len(set(names)) == len(names)
    for wanted in (
        "2 ranks c registered 8",
        "2 ranks c private 128M",
        "8 ranks c private 8",
        "4 ranks python 8",
        "2 ranks named 1M computing exposed",
        "training mlp shard step",
        "4 hosts unnamed 16M idle",
        "4 hosts named 8 computing step",
        "4 hosts of 2 ranks reducescatter 1M idle",
    ):
        assert wanted in names
    quick = [case.name for case in cases.chosen(everything, cases.QUICK)]
    assert 10 < len(quick) < len(names) / 3
    assert not any("hosts" in name for name in quick)
    assert len(cases.chosen(everything, "private 2M$")) == 1


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    command = ["git", "-C", str(folder), *identity, *words]
    return completed(command, check=True).stdout.strip()


def test_trees_are_copies_and_the_checkout_is_only_read(tmp_path: Path) -> None:
    from builds import trees

    root, folder = tmp_path / "checkout", tmp_path / "checkout" / "build" / "compare"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("build/\n*.so\n")
    (root / "a.py").write_text("first")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "Begin")
    first = git(root, "rev-parse", "HEAD")
    (root / "a.py").write_text("second")
    git(root, "commit", "--quiet", "-am", "Go on")
    old = trees.of_commit(root, "HEAD~1", folder)
    assert first.startswith(old.name)
    assert old.label == f"{old.name} Begin"
    assert (old.path / "a.py").read_text() == "first"
    assert not trees.is_dirty(root)

    (root / "new.py").write_text("new")
    (root / "core.so").write_text("ignored")
    assert trees.is_dirty(root)
    now = trees.of_checkout(root, folder)
    assert sorted(path.name for path in now.path.iterdir()) == [".copied", ".gitignore", "a.py", "new.py"]
    (now.path / "core.so").write_text("built here")
    unchanged = (now.path / "a.py").stat().st_mtime_ns
    (root / "new.py").unlink()
    again = trees.of_checkout(root, folder)
    assert sorted(path.name for path in again.path.iterdir()) == [".copied", ".gitignore", "a.py", "core.so"]
    assert (again.path / "a.py").stat().st_mtime_ns == unchanged  # ninja would compile it again
    with pytest.raises(trees.TreeError, match="no-such-commit"):
        trees.of_commit(root, "no-such-commit", folder)


def test_what_python_would_not_import_is_not_measured(tmp_path: Path) -> None:
    from builds import trees

    with pytest.raises(trees.TreeError, match="is not what Python imports"):
        trees.check(trees.Tree("empty", "empty", tmp_path))


def test_a_build_beside_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once through everything but the compiler: both trees are this checkout."""
    import compare
    from builds.trees import Tree, check

    here = Tree("here", "this checkout", ROOT)
    check(here)
    monkeypatch.setattr(compare, "FOLDER", tmp_path)
    monkeypatch.setattr(compare, "_trees", lambda old, new: (here, here))
    monkeypatch.setattr(compare.signal, "signal", lambda *_: None)
    pattern = r"2 ranks c private 8$|2 ranks named 8 (idle|computing)"
    status = compare.main(["HEAD", "--rounds", "1", "--more", "0", "--no-lab", "--only", pattern])
    printed = capsys.readouterr()
    document = json.loads((tmp_path / "here-here.json").read_text())
    assert not any(run["failure"] for run in document["runs"]), printed.err
    assert [run["side"] for run in document["runs"]] == ["old", "new", "old again"] * 2
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", run["began"]) for run in document["runs"])
    for run in document["runs"]:
        assert all(0 < time < 1e7 for times in run["times"].values() for time in times.values())
    computing = next(run["times"]["named 8 computing"] for run in document["runs"] if run["group"] == "2 ranks")
    assert computing["exposed"] < computing["step"]
    assert [one["case"] for one in document["cases"]] == [
        "2 ranks c private 8",
        "2 ranks named 8 idle",
        "2 ranks named 8 computing exposed",
        "2 ranks named 8 computing step",
    ]
    assert {"cpu", "kernel", "load_average", "old", "new"} <= document["meta"].keys()
    assert (status, printed.out.splitlines()[-1]) == (1, "nothing was judged")  # by one round


def test_a_pattern_that_chooses_nothing_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import compare

    monkeypatch.delattr(compare, "_trees")
    assert compare.main(["HEAD", "--only", "8 B"]) == 2
    assert "no case has a name in which '8 B' is found" in capsys.readouterr().err
    assert compare.main(["HEAD", "--no-lab", "--only", "4 hosts"]) == 2


def test_training_steps_are_timed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from builds.local import Steps
    from builds.trees import Tree

    times = Steps().run(Tree("here", "this checkout", ROOT), ["lenet shard", "lenet ddp"])
    assert times.keys() == {"lenet shard", "lenet ddp"}
    assert all(100 < one["step"] < 1e8 for one in times.values()), times


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_ranks_on_hosts_are_timed() -> None:
    from builds.hosts import Hosts
    from builds.trees import Tree

    here, hosts = Tree("here", "this checkout", ROOT), Hosts(2)
    if reason := hosts.missing():
        pytest.skip(reason)
    with hosts.up([here]):
        times = hosts.run(here, ["unnamed 8 idle", "named 4K computing"])
    assert {order: tuple(one) for order, one in times.items()} == {
        "unnamed 8 idle": ("call",),
        "named 4K computing": ("exposed", "step"),
    }
    assert all(0 < time < 1e7 for one in times.values() for time in one.values())
