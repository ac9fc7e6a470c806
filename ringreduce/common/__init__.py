"""Where Horovod's scripts look for what is not of one framework: ringreduce.common.exceptions."""
