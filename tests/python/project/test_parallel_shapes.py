"""The examples of tensor, pipeline, sequence and two-dimensional parallelism: each trains what one rank would train."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from example_runs import EXAMPLES, example
from ranks import run_ranks

pytest.importorskip("torch")
sys.path.insert(0, str(EXAMPLES / "parallel"))

from text import characters  # of the examples

SMALL = ("--steps", "6", "--width", "16", "--rows", "4", "--length", "12")
ACTIVATION = 4 * 12 * 16 * 8
"""Bytes of one activation of these rows, length and width, in float64."""


def trained(script: str, ranks: int, folder: Path, *options: str) -> dict[str, Any]:
    """The result of a short run, which the example has compared with one rank's training."""
    output = folder / "result.json"
    lines = run_ranks(example, ranks, args=(f"parallel/{script}", *SMALL, "--check", "--json", str(output), *options))
    result: dict[str, Any] = json.loads(output.read_text())
    assert result["ranks"] == ranks
    assert len(result["losses"]) == 6
    assert result["losses"][-1] < result["losses"][0]
    assert result["difference"] <= 1e-10
    assert f"equal to one rank: largest difference {result['difference']:.1e}" in lines[0]
    assert not any(lines[1:])
    return result


def refusal(script: str, break_it: str, *options: str) -> str:
    """A rank breaks a collective, runs the example and returns the sentence with which that ends."""
    if break_it:
        globals()[break_it]()
    with pytest.raises(SystemExit) as end:
        example(f"parallel/{script}", *options)
    return str(end.value)


def refusals(script: str, ranks: int, *options: str, break_it: str = "") -> set[str]:
    """What the ranks say, which should be the same."""
    return set(run_ranks(refusal, ranks, args=(script, break_it, *options)))


def assert_check_fails(break_it: Callable[[], None], script: str, ranks: int, *options: str) -> None:
    (said,) = refusals(script, ranks, *SMALL, "--check", *options, break_it=break_it.__name__)
    found = re.fullmatch(r"step 0: the ranks' model differs by (\S+) from the model of one rank", said)
    assert found
    assert float(found[1]) > 1e-6


def assert_is_png(path: Path) -> None:
    assert path.read_bytes().startswith(b"\x89PNG")


# --- tensor parallel ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tensor_parallel(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = trained("tensor_parallel.py", ranks, tmp_path, "--layers", "3", "--picture", str(tmp_path / "loss.png"))
    assert result["nbytes"] == 4 * 3 * ACTIVATION
    assert_is_png(tmp_path / "loss.png")


def test_tensor_parallel_ranks_hold_parts(tmp_path: Path) -> None:
    held = [trained("tensor_parallel.py", ranks, tmp_path)["parameters"] for ranks in (1, 2, 4)]
    split = 2 * (12 * 16 * 16 + 4 * 16)  # of two blocks
    assert [held[0] - held[1], held[0] - held[2]] == [split // 2, 3 * split // 4]


def allreduce_without_sum() -> None:
    import ringreduce.torch as hvd

    hvd.allreduce = lambda tensor, **settings: tensor


def allreduce_of_halves() -> None:
    import ringreduce.torch as hvd

    whole = hvd.allreduce
    hvd.allreduce = lambda tensor, **settings: whole(tensor, **settings | {"postscale_factor": 0.5})


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("break_it", [allreduce_without_sum, allreduce_of_halves])
def test_tensor_parallel_without_its_sums(break_it: Callable[[], None], ranks: int) -> None:
    assert_check_fails(break_it, "tensor_parallel.py", ranks)


def test_tensor_parallel_on_ranks_that_do_not_divide_heads() -> None:
    assert refusals("tensor_parallel.py", 3) == {"4 heads cannot be split over 3 ranks"}
    assert refusals("tensor_parallel.py", 1, "--width", "30") == {"width 30 cannot be split over 4 heads"}


# --- pipeline -------------------------------------------------------------------------------------------------------

SCHEDULES = ("gpipe", "1f1b")
PIPELINE = ("--layers", "4")


@pytest.fixture(scope="module")
def pipeline() -> dict[str, Any]:
    """The functions of the example."""
    return runpy.run_path(str(EXAMPLES / "parallel" / "pipeline.py"))


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 4, 7, 16])
def test_bubble_of_equal_times(kind: str, ranks: int, count: int, pipeline: dict[str, Any]) -> None:
    boxes = pipeline["equal_boxes"](kind, ranks, count)
    everything = sorted((way, number) for way in "BF" for number in range(count))
    ends = {(way, number, rank): end for rank, row in enumerate(boxes) for way, number, _, end in row}
    for rank, row in enumerate(boxes):
        assert sorted((way, number) for way, number, *_ in row) == everything
        assert all(end <= begin for (*_, end), (*_, begin, _) in pairwise(row))
        for way, number, begin, end in row:
            assert end == begin + 1
            before = rank - 1 if way == "F" else rank + 1
            assert ends.get((way, number, before), 0) <= begin
            assert way == "F" or ends["F", number, rank] <= begin
    assert max(ends.values()) == 2 * (count + ranks - 1)
    assert pipeline["idle_shares"](boxes) == [(ranks - 1) / (count + ranks - 1)] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_pipeline(kind: str, ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "schedule.png"
    options = ("--schedule", kind, "--micro-batches", "4", "--picture", str(picture))
    result = trained("pipeline.py", ranks, tmp_path, *PIPELINE, *options)
    neighbours = [sum(0 <= other < ranks for other in (rank - 1, rank + 1)) for rank in range(ranks)]
    assert result["nbytes"] == [2 * ACTIVATION * count for count in neighbours]
    assert result["held"] == [4 if kind == "gpipe" else ranks - rank for rank in range(ranks)]
    assert result["formula"] == (ranks - 1) / (4 + ranks - 1)
    assert len(result["idle"]) == ranks
    assert all(0 <= share < 1 for share in result["idle"])
    assert result["bubble"] == pytest.approx(sum(result["idle"]) / ranks)
    assert_is_png(picture)


def test_pipeline_of_fewer_micro_batches_than_ranks(tmp_path: Path) -> None:
    result = trained("pipeline.py", 4, tmp_path, *PIPELINE, "--micro-batches", "2")
    assert result["held"] == [2, 2, 2, 1]


def messages_without_content() -> None:
    import ringreduce

    receive = ringreduce.recv
    ringreduce.recv = lambda tensor, *place, **settings: receive(tensor, *place, **settings).zero_()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_pipeline_of_messages_without_content(kind: str, ranks: int) -> None:
    options = (*PIPELINE, "--schedule", kind, "--micro-batches", "4")
    assert_check_fails(messages_without_content, "pipeline.py", ranks, *options)


def test_pipeline_that_cannot_be_split() -> None:
    assert refusals("pipeline.py", 3, *PIPELINE) == {"4 layers cannot be split over 3 ranks"}
    options = ("--rows", "6", "--micro-batches", "4")
    assert refusals("pipeline.py", 2, *PIPELINE, *options) == {"6 rows cannot be split into 4 micro-batches"}


# --- sequence parallel ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_sequence_parallel(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = trained("sequence_parallel.py", ranks, tmp_path, "--layers", "3", "--picture", str(tmp_path / "loss.png"))
    kinds = int(characters().max()) + 1
    replicated = 2 * kinds * 16 + 16 + 3 * 3 * 16  # embedding and head, last norm, two norms and a bias of each block
    gradients = 8 * (replicated + 1)  # and the loss
    assert result["nbytes"] == 3 * (4 * ACTIVATION + 4 * ACTIVATION // ranks) + gradients
    assert_is_png(tmp_path / "loss.png")


def test_sequence_parallel_ranks_keep_parts(tmp_path: Path) -> None:
    kept = [trained("sequence_parallel.py", ranks, tmp_path)["kept"] for ranks in (1, 2, 4)]
    assert kept[0] > 1.5 * kept[1] > 1.5 * 1.2 * kept[2]


def reducescatter_without_sum() -> None:
    import ringreduce.torch as hvd

    hvd.reducescatter = lambda tensor, **settings: tensor.chunk(hvd.size())[hvd.rank()].clone()


def gradients_without_sum() -> None:
    import ringreduce.torch as hvd

    hvd.grouped_allreduce_ = lambda tensors, **settings: tensors


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("break_it", [reducescatter_without_sum, gradients_without_sum])
def test_sequence_parallel_without_its_sums(break_it: Callable[[], None], ranks: int) -> None:
    assert_check_fails(break_it, "sequence_parallel.py", ranks)


def test_sequence_parallel_on_ranks_that_do_not_divide() -> None:
    assert refusals("sequence_parallel.py", 3) == {"heads 4 cannot be split over 3 ranks"}
    assert refusals("sequence_parallel.py", 2, "--length", "7") == {"length 7 cannot be split over 2 ranks"}


# --- mesh -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1)])
def test_mesh(mesh: tuple[int, int], tmp_path: Path) -> None:
    copies, parts = mesh
    result = trained("mesh.py", copies * parts, tmp_path, "--mesh", *map(str, mesh))
    assert result["mesh"] == [*mesh]
    kinds = int(characters().max()) + 1
    replicated = 2 * kinds * 16 + 12 * 16 + 16 + 2 * 3 * 16  # as above, and the positions
    split = 2 * (12 * 16 * 16 + 4 * 16)
    assert result["nbytes"] == 4 * 2 * ACTIVATION // copies + 8 * (replicated + split // parts + 1)


@pytest.mark.parametrize(("ranks", "mesh"), [(1, [1, 1]), (2, [1, 2]), (4, [2, 2])])
def test_mesh_by_default(ranks: int, mesh: list[int], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert trained("mesh.py", ranks, tmp_path, "--picture", str(tmp_path / "loss.png"))["mesh"] == mesh
    assert_is_png(tmp_path / "loss.png")


def allreduce_over_the_mesh() -> None:
    import ringreduce.torch as hvd

    allreduce = hvd.allreduce
    hvd.allreduce = lambda tensor, op, process_set: allreduce(tensor, op=op)


def gradients_of_the_mesh() -> None:
    import ringreduce.torch as hvd

    average = hvd.grouped_allreduce_
    hvd.grouped_allreduce_ = lambda tensors, op, process_set: average(tensors, op=op)


@pytest.mark.parametrize(
    ("break_it", "mesh"),
    [
        (allreduce_without_sum, (1, 2)),
        (allreduce_without_sum, (2, 2)),
        (allreduce_over_the_mesh, (2, 2)),
        (gradients_without_sum, (2, 1)),
        (gradients_without_sum, (2, 2)),
        (gradients_of_the_mesh, (2, 2)),
    ],
)
def test_mesh_of_wrong_collectives(break_it: Callable[[], None], mesh: tuple[int, int]) -> None:
    assert_check_fails(break_it, "mesh.py", mesh[0] * mesh[1], "--mesh", *map(str, mesh))


def test_mesh_on_other_numbers_of_ranks() -> None:
    assert refusals("mesh.py", 3) == {"a mesh of 1x2 needs 2 ranks, not 3"}
    assert refusals("mesh.py", 2, "--mesh", "2", "2") == {"a mesh of 2x2 needs 4 ranks, not 2"}
    three = "cannot be split by 3, of a mesh of"
    assert refusals("mesh.py", 3, "--mesh", "1", "3") == {f"4 heads {three} 1x3"}
    assert refusals("mesh.py", 3, "--mesh", "3", "1") == {f"8 rows {three} 3x1"}


def scripts() -> list[str]:
    return sorted(path.name for path in (EXAMPLES / "parallel").glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("script", scripts())
def test_the_first_line_is_a_command_that_the_example_takes(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = (EXAMPLES / "parallel" / script).read_text().partition("\n")[0]
    found = re.fullmatch(r"# ringrun -np [24] python examples/parallel/(\S+\.py)((?: \S+)*)", line)
    assert found, line
    assert found[1] == script
    with pytest.raises(SystemExit) as end:
        example(f"parallel/{script}", *found[2].split(), "--help")
    assert end.value.code == 0, capsys.readouterr().err
