"""A job whose ranks all run on this host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ringreduce.launch.job import Job, Rank
from ringreduce.launch.output import LastWords, Source
from ringreduce.launch.processes import Processes
from ringreduce.launch.reports import Reports


class Supervisor(Job[Rank]):
    """The ranks of one job, all on this host; the arguments are those of Job, and guarded is that of Processes."""

    def __init__(
        self, grace_s: float, report: Callable[[str], None], verbose: bool = False, guarded: bool = False
    ) -> None:
        super().__init__(grace_s, report, verbose)
        self._processes = Processes(self.selector, self._on_end, report, guarded)
        self._reports: Reports | None = None

    def __enter__(self) -> Supervisor:
        return self

    def hear(self, rendezvous: str) -> None:
        """From now on the ranks of the job with this RINGREDUCE_RENDEZVOUS can say what exception ends them."""
        self._reports = Reports(rendezvous, self.causes, self.selector)

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        cpus: Collection[int] | None,
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
        sources: Sequence[Source] = (),
    ) -> Rank:
        """Starts the next rank; as Processes.start()."""
        number = len(self.ranks)
        self.ranks.append(
            self._processes.start(number, command, environ, cpus, stdin, stdout, stderr, pass_fds, sources)
        )
        return self.ranks[-1]

    def send(self, signum: int) -> None:
        """Sends a signal to every living rank and its children."""
        self._processes.send(signum)

    def last_words(self) -> LastWords | None:
        """The output of ranks that have ended well, to be read on."""
        return self._processes.last_words()

    def late(self) -> str:
        """What does not end although it should, and why that may be."""
        if self._processes.alive_of_others():
            return f"{self.who()} cannot be killed (another user's)"
        return super().late()

    def close(self) -> None:
        """Kills what still runs, and after a failure also what the ranks left running; frees everything. Once."""
        if self.first_failure is not None or self.alive():
            self._processes.kill_groups()
        for sink in self.sinks:
            sink.drain()
            sink.flush_ready()
            sink.close()
        self._processes.close(self._abandoned)
        if self._reports is not None:
            self._reports.close()
        self.selector.close()

    def _on_end(self, rank: Rank) -> None:
        if self._reports is not None:
            self._reports.read()
        self.judge(rank)
