"""Starting ranks: the ringrun command (ringrun.py) and the same for a Python function (run.py)."""
