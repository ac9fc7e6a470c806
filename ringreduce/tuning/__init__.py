"""`ringreduce tune`: measures a machine, says what all-reduces should take and do take, and writes a plan file."""
