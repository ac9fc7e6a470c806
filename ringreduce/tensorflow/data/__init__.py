"""Where Horovod's scripts look for its data service: ringreduce.tensorflow.data.compute_service. Reserved."""
