"""Columns of text by arrays: the same text as Python's own formatting gives."""

import json

import numpy as np
import pytest

from ringreduce.timeline.export.text_rows import Texts, joined, thousandths, whole

NUMBERS = [0, 1, 9, 10, 999, 1000, 9999, 10_000, 10_001, 123_456_789, 2**62, 10**18 - 1, 10**18, 2**63 - 1]
UNSIGNED = [*NUMBERS, 2**63, 10**19 - 1, 10**19, 2**64 - 1]


def texts(column: np.ndarray) -> list[str]:
    return joined(len(column), column, b"\n").decode().split("\n")[:-1]


@pytest.mark.parametrize("sign", [1, -1])
def test_whole_numbers(sign: int) -> None:
    values = [sign * number for number in NUMBERS]
    assert texts(whole(np.array(values))) == list(map(str, values))
    for value in values:
        assert texts(whole(np.array([value]))) == [str(value)]


@pytest.mark.parametrize("sign", [1, -1])
def test_thousandths(sign: int) -> None:
    def text(number: int) -> str:
        minus = "-" if sign < 0 and number else ""
        return f"{minus}{number // 1000}.{number % 1000:03}"

    values = np.array([sign * number for number in NUMBERS])
    assert texts(thousandths(values)) == list(map(text, NUMBERS))
    assert texts(thousandths(values[:5])) == list(map(text, NUMBERS[:5]))


def test_numbers_of_64_bits_without_a_sign() -> None:
    values = np.array(UNSIGNED, np.uint64)
    assert texts(whole(values)) == list(map(str, UNSIGNED))
    assert texts(thousandths(values)) == [f"{number // 1000}.{number % 1000:03}" for number in UNSIGNED]


def test_the_smallest_number() -> None:
    values = np.array([-(2**63)])
    assert texts(whole(values)) == [str(-(2**63))]
    assert texts(thousandths(values)) == [f"-{2**63 // 1000}.{2**63 % 1000:03}"]


def test_few_lines_of_many_texts() -> None:
    words = list(map(str, range(1000)))
    assert texts(Texts(words).column(np.array([999, 3, 3]))) == ["999", "3", "3"]


def test_lines_of_several_columns() -> None:
    words = [json.dumps(word) for word in ("allreduce", "b", "ü", "")]
    index = np.array([0, 3, 2, 1, 0])
    assert joined(5, b"[", Texts(words).column(index), b", ", whole(index * -7), b"]\n").decode() == "".join(
        f"[{words[at]}, {at * -7}]\n" for at in index.tolist()
    )


def test_no_lines() -> None:
    none = np.zeros(0, np.int64)
    assert joined(0, b"x", Texts(["a"]).column(none), Texts([]).column(none), whole(none), thousandths(none)) == b""
