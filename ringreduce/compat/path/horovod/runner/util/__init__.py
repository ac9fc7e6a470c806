"""Horovod's helpers of its launcher, those that make sense without horovodrun."""
