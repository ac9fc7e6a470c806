"""What each run of ringrun has, wherever its ranks run: output, the user's signals, the exit status."""

from __future__ import annotations

import abc
import argparse
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Generic, TypeVar

from ringreduce.launch.job import ENDING, UNREAD_S, Job
from ringreduce.launch.output import Lines, Sink, rank_copies, rank_lines
from ringreduce.launch.spawn import no_descriptor
from ringreduce.launch.terminal import Keyboard, end_by, signals_as_events

USAGE_STATUS = 2
CANNOT_RUN_STATUS = 126
NOT_FOUND_STATUS = 127
STDIN, STDOUT, STDERR = 0, 1, 2
LINE_CHARS = 4000
FOREGROUND_S = 0.5  # between two looks for the foreground
QUIET_S = 0.1  # after which the beginning of a line of rank 0's counts as a question to the user
AGAIN_S = 0.5
"""A second SIGINT or SIGTERM counts as one so long after the first. What comes before is the first, delivered twice:
GNU timeout signals its child and then its process group, and wrappers pass on a Ctrl-C that ringrun has got too."""


def printable(line: str) -> str:
    """Words that may be another host's, and that are to do nothing to the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in line[:LINE_CHARS])


AnyJob = TypeVar("AnyJob", bound=Job)  # type: ignore[type-arg]


class Launch(abc.ABC, Generic[AnyJob]):
    """One run of ringrun.

    Args:
        new_job: makes the job, given the function that takes a line for the user.
    """

    def __init__(
        self, options: argparse.Namespace, prog: str, new_job: Callable[[Callable[[str], None]], AnyJob]
    ) -> None:
        self.options = options
        self.job = new_job(self.report)
        self._prog = prog
        self._has_lost_output = False
        self._has_given_up = False  # output that nobody has read in time, at a signal of the user's
        self._last_signal = 0  # that asked for the end
        self.out = Sink(STDOUT, self.job.selector, partial(self._lose_output, "stdout"))
        # `2>&1`: one queue for both, so that lines of the two neither mix nor change places.
        lose = partial(self._lose_output, "stderr")
        self.err = self.out if os.path.sameopenfile(STDOUT, STDERR) else Sink(STDERR, self.job.selector, lose)
        self.job.sinks += [self.out, self.err]
        self.keyboard: Keyboard | None = None
        self._interrupted_at = math.inf  # when the first SIGINT or SIGTERM came, by time.monotonic()
        self._quit = False

    @abc.abstractmethod
    def start(self, lines: list[tuple[Lines, Lines]]) -> None:
        """Starts the ranks. lines: take stdout and stderr, by rank. Raises OSError when the program cannot be run."""

    def what_is_next(self) -> str:
        """What start() was about to start, in words."""
        return f"rank {len(self.job.ranks)}"

    def run(self) -> int:
        """Starts the ranks and waits for the last to end. Returns the exit status."""
        options = self.options
        with ExitStack() as files, signals_as_events(self.job.selector, self._on_signal), self.job:
            try:
                copies = rank_copies(options.output_filename, options.ranks, self._lose_copy, files)
            except OSError as error:
                self.report(f"--output-filename {options.output_filename}: {error}")
                return USAGE_STATUS
            tagged = self.out.terminal if options.tag_output is None else options.tag_output
            lines = [rank_lines(rank, self.out, self.err, tagged, copies[rank]) for rank in range(options.ranks)]
            for name, taker in zip(("stdout", "stderr"), lines[0], strict=True):
                taker.on_part = partial(self._expect_question, name, taker)
            self.job.advice = partial(self._advice, lines)
            try:
                try:
                    self.start(lines)
                except OSError as error:
                    cannot = f"cannot run {error.filename or options.command[0]!r}: {error.strerror}"
                    self.report(no_descriptor(error, self.what_is_next()) or cannot)
                    return NOT_FOUND_STATUS if isinstance(error, FileNotFoundError) else CANNOT_RUN_STATUS
                self.job.run()
                self._give_up_the_rest()
            finally:
                if self.keyboard is not None:
                    self.keyboard.close()
        if self._quit:
            end_by(signal.SIGQUIT)
        unread = 128 + self._last_signal if self._has_given_up else 0
        return self.job.exit_status() or unread or int(self._has_lost_output)

    def report(self, line: str) -> None:
        """Tells the user a line."""
        self.err.put(f"{self._prog}: {printable(line)}\n".encode())

    def stdin(self, files: ExitStack) -> int:
        """What rank 0 reads: our own input, or a pipe, which `files` closes, if that is a terminal."""
        if not os.isatty(STDIN):
            return STDIN
        reader, writer = os.pipe2(os.O_CLOEXEC)
        files.callback(os.close, reader)
        self.keyboard = Keyboard(STDIN, writer, self.job.selector, self._on_entered, self._look_for_foreground)
        if self.keyboard.is_deaf:
            self.report(
                f"rank 0 gets no input: this terminal can be opened neither as /proc/self/fd/{STDIN} nor as /dev/tty; "
                "give it input by a pipe or a file"
            )
        return reader

    def _look_for_foreground(self) -> None:
        """Looks soon whether the terminal is this job's again: nothing tells."""
        self.job.timers["foreground"] = (time.monotonic() + FOREGROUND_S, self._resume_keyboard)

    def _resume_keyboard(self) -> None:
        if self.keyboard is not None:
            self.keyboard.resume()

    def _on_entered(self) -> None:
        for sink in (self.out, self.err):
            if sink.terminal:
                sink.end_line()

    def _expect_question(self, name: str, taker: Lines) -> None:
        """Shows the beginning of a line (of input(), of pdb) unless more comes soon, where the keyboard is rank 0's."""
        if self.keyboard is not None and self.keyboard.is_open():
            self.job.timers[f"question on {name}"] = (time.monotonic() + QUIET_S, taker.pass_part)

    def _advice(self, lines: list[tuple[Lines, Lines]]) -> str:
        if self.options.as_horovod or not any(of_err.lacks_horovod for _, of_err in lines):
            return ""
        return f"`{self._prog} --as-horovod ...` runs a script that imports horovod, without a change, by ringreduce"

    def _lose_output(self, where: str, why: str) -> None:
        self._has_lost_output = True
        self.report(f"cannot write to {where}: {why}; the rest of the ranks' output there is lost")

    def _give_up_the_rest(self) -> None:
        """When the job is over, and not all is written: the user has not waited for it."""
        for name, sink in (("stdout", self.out), ("stderr", self.err)):
            if nbytes := sink.give_up():
                self._has_given_up = True
                self.report(f"{name}: the last {nbytes} bytes of output are lost: they were not read in time")

    def _lose_copy(self, why: str) -> None:
        self._has_lost_output = True
        self.report(f"{why}; the file ends here, the rank goes on")

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if signum == signal.SIGCONT:
            self._resume_keyboard()
            return
        if signum == signal.SIGQUIT:
            self._quit = True
            self.report(f"{name}: killing all ranks")
            self.job.stop_now()
            return
        has_ended = self.job.have_ended()
        if signum in ENDING:
            self._last_signal = signum
        insistent = signum in (signal.SIGINT, signal.SIGTERM)  # SIGHUP may come twice: from the kernel and the shell
        if insistent and self._interrupted_at < math.inf:
            if time.monotonic() - self._interrupted_at < AGAIN_S:
                later = "gives up the rest of the output" if has_ended else "kills all ranks"
                self.report(f"{name} within {AGAIN_S:g} s of the first signal: not counted; a later one {later}")
                return
            self.report(f"{name} again: {'the rest of the output is given up' if has_ended else 'killing all ranks'}")
            self.job.stop_now()
            return
        if insistent:
            self._interrupted_at = time.monotonic()
        if signum in ENDING and has_ended:
            self.report(f"{name}: all ranks have ended; output that nobody reads for {UNREAD_S:g} s is given up")
            self.job.end_unless_read()
            return
        self.report(f"{name}: passing it on to all ranks")
        self.job.pass_on(signum)
