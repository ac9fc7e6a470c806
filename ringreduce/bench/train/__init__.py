"""`ringreduce bench train`: what data parallelism is worth on one host or several, beside other ways to train.

cli.py reads the command and prints; rounds.py alternates the modes; job.py runs one measurement as a job of its own;
worker.py is one process of such a job; modes/ has one adapter per column of the comparison, frameworks/ one per
framework. Only what runs in a worker imports a framework, and only when called.
"""
