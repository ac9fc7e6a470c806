"""`ringreduce timeline`: reads the record files of all ranks, puts them on one clock, and exports or reports them.

Works offline, on any machine: it imports NumPy and ringreduce.errors, never the native core.
"""
