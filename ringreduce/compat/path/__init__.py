"""A folder for sys.path and PYTHONPATH: what lies in it is imported as `horovod`, not as ringreduce.compat.path."""
