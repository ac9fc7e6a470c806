"""`ringreduce bench`: how long a collective takes on this machine, and whether its result is right.

The table reads as that of nccl-tests; docs/reference/benchmarks.md says how each figure is taken. Stands at the edge:
nothing in ringreduce imports it but the command line.
"""
