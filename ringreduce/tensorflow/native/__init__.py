"""The operators of ringreduce/_tensorflow.so as Python functions: names, errors, shapes and gradients.

mpi_ops.py gathers what is for users. Tensors here are dense and process sets registered.
"""
