"""Where rank 0 of a Slurm step listens: every task can tell from its variables, with nothing sent."""

from __future__ import annotations

import re

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.environment import Environ
from ringreduce.job.tcp.listening_ports import ANY, meeting_ports

PORTS = range(20000, 32000)  # Linux begins with ports of its own choice at 32768
STEPS_OF_A_JOB = 16  # jobs with neighbouring numbers have ports apart


def first_node(environ: Environ) -> str:
    """The name of the step's first node, where rank 0 runs but for srun --distribution=arbitrary.

    Raises InvalidArgumentError.

    >>> first_node({"SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1"})
    'gpu07'
    """
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    words = re.match(r"(?:\[[^\]]*\]|[^,\[])+", nodes)  # up to the first comma outside of brackets
    if words is None:
        raise InvalidArgumentError(
            "SLURM_STEP_NODELIST says of no node that rank 0 is there: set RINGREDUCE_ADDRESS=host:port on all ranks"
        )
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", words[0])


def port(environ: Environ, ports: range = ANY) -> int:
    """20000 + (16 job id + step id) modulo 12000: another one for each step of the jobs that run at a time.

    ports: of RINGREDUCE_PORTS, of which the number says one then.

    >>> port({"SLURM_JOB_ID": "123456", "SLURM_STEP_ID": "2"})
    27298
    """
    job, step = (_integer(environ, name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    allowed = PORTS if ports == ANY else meeting_ports(ports)
    return allowed[(STEPS_OF_A_JOB * job + step) % len(allowed)]


def _integer(environ: Environ, name: str) -> int:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        raise InvalidArgumentError(f"{name}={environ.get(name)!r} is not the number of a Slurm job or step") from None
