"""What benchmarks/network.py is made of: competitors and their jobs, the ranks' side, rounds, figures, and tables.

worker.py and what it imports (calls.py, pattern.py) run on the ranks; the rest runs beside the lab
(ringreduce.lab).
"""
