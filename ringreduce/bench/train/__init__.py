"""`ringreduce bench train`: what data parallelism is worth on this machine, beside one process, DDP and Horovod.

cli.py reads the command and prints; rounds.py alternates the modes; job.py runs one measurement as a job of its own;
worker.py is one process of such a job; modes/ has one adapter per column of the comparison. Only what runs in a worker
imports torch, and only when called.
"""
