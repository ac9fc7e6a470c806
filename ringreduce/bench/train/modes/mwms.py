"""TensorFlow's own way: tf.distribute.MultiWorkerMirroredStrategy, one worker per rank, over gRPC on the loopback."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringreduce.bench.train.frameworks import keras
from ringreduce.bench.train.modes.mode import Mode, Team
from ringreduce.errors import TimeoutError

if TYPE_CHECKING:
    from ringreduce.bench.train.spec import Spec

POLL_S = 0.01


class Workers(Team):
    """The strategy's workers. The first one leads the others, and has to leave last."""

    def __init__(self, rank: int, size: int, strategy: Any, port: socket.socket, spec: Spec) -> None:
        super().__init__(rank, size)
        self.strategy = strategy
        self._port = port
        self._folder = Path(spec.folder)
        self._timeout_s = spec.timeout_s

    def slowest(self, seconds: float) -> float:
        """See Team."""
        import tensorflow as tf

        return float(max(self.strategy.gather(tf.constant([seconds], tf.float64), axis=0).numpy()))

    def leave(self) -> None:
        """See Team: a worker that finds its leader gone would end in an abort, so the leader waits for their ends.

        They meet by files: who has the result of a collective may be gone before another worker has it.
        """
        files = files_of_ranks(self._folder, "done", self.size)
        publish(files[self.rank], "")
        wait_for_files(files, self._timeout_s)
        if self.rank == 0:
            for file in files[1:]:
                with file.open() as held:
                    fcntl.flock(held, fcntl.LOCK_SH)  # held exclusively until its process has ended


class Mwms(Mode):
    """Started and bound by ringrun; the workers tell each other their ports by files."""

    name = "mwms"
    frameworks = ("tensorflow", "keras")
    implementation = "AUTO"
    one_host = "its workers meet by files and on the loopback: it is measured on one host here"

    def absent(self, framework: str = "torch") -> str | None:
        """See Mode."""
        if framework == "keras" and keras.backend() != "tensorflow":
            return f"a strategy is TensorFlow's, and KERAS_BACKEND is {keras.backend()}"
        return super().absent(framework)

    def environ(self) -> dict[str, str]:
        """See Mode."""
        return {"TF_GRPC_REUSE_PORT": "1"}

    def join(self, spec: Spec) -> Team:
        """See Mode."""
        place = self.place()
        rank, size = place.rank, place.size
        # Kept, so that no other program is given the port between its choice and its use: gRPC may share it.
        port = socket.socket()
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(("127.0.0.1", 0))
        files = files_of_ranks(Path(spec.folder), "port", size)
        publish(files[rank], str(port.getsockname()[1]))
        ports = wait_for_files(files, spec.timeout_s)
        cluster = {"worker": [f"127.0.0.1:{each}" for each in ports]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})

        import tensorflow as tf

        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation[self.implementation]
        )
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        return Workers(rank, size, strategy, port, spec)


class MwmsRing(Mwms):
    """As Mwms, with the ring implementation asked for by name."""

    name = "mwms-ring"
    implementation = "RING"


def files_of_ranks(folder: Path, name: str, size: int) -> list[Path]:
    """The files by which all ranks tell each other one thing."""
    return [folder / f"{name}-{rank}" for rank in range(size)]


def publish(file: Path, text: str) -> None:
    """Writes a file that appears whole, and locks it for as long as this process lives."""
    descriptor = os.open(file.with_suffix(".new"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, text.encode())
    os.rename(file.with_suffix(".new"), file)


def wait_for_files(files: list[Path], timeout_s: float) -> list[str]:
    """What the files say, once they are all there. Raises TimeoutError when that takes too long."""
    until = time.monotonic() + timeout_s
    while not all(file.exists() for file in files):
        if time.monotonic() > until:
            missing = [file.name for file in files if not file.exists()]
            raise TimeoutError(f"MultiWorkerMirroredStrategy: no {', '.join(missing)} after {timeout_s:g} s")
        time.sleep(POLL_S)
    return [file.read_text() for file in files]
