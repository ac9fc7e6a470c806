"""Tables are coloured on a terminal only, and say the same words there."""

import io
import re

import pytest

from ringreduce.bench import terminal

TEXT = "# ringreduce 0.1: allreduce\n           8  openmpi  0.52x / 1.31x\n# Out of bounds values : 3 FAILED"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(file: io.StringIO) -> str:
    terminal.show(TEXT, file)
    return file.getvalue()


def test_a_terminal_gets_colours_around_the_same_words() -> None:
    pytest.importorskip("rich")
    styled = shown(Terminal())
    assert re.sub(r"\x1b\[[0-9;]*m", "", styled) == TEXT + "\n"
    styles = [re.findall(rf"(\x1b\[[0-9;]+m){word}", styled) for word in ("1.31x", "0.52x", "FAILED")]
    assert [len(found) for found in styles] == [1, 1, 1]
    assert len({found[0] for found in styles}) == 3


def test_lines_are_not_wrapped_to_the_terminal() -> None:
    pytest.importorskip("rich")
    file = Terminal()
    terminal.show("8 " * 300, file)
    assert file.getvalue().count("\n") == 1


def test_pipes_and_no_color_get_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO()) == TEXT + "\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Terminal()) == TEXT + "\n"


def test_a_rank_under_the_launcher_is_told_that_there_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in shown(io.StringIO())
