"""`ringreduce top`: watches running jobs from outside, by their memory and /proc."""
