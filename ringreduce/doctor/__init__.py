"""`ringreduce doctor`: what this installation and this machine have, and whether two ranks can add.

Imports no framework and no MPI: it reads their metadata, and a process of its own asks MPI about GPU memory. Under a
launcher every rank runs it and rank 0 reports.
"""

from ringreduce.doctor.cli import main

__all__ = ["main"]
