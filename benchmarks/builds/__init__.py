"""What benchmarks/compare.py is made of: trees of two commits, cases, runs in turns, verdicts, and the table.

calls.py and steps.py run on the ranks and use nothing but ringreduce's public names, so that every commit can run them.
"""
