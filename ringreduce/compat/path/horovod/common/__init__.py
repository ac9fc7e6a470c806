"""Horovod's modules that belong to no framework: basics, elastic, exceptions, process_sets, util."""
