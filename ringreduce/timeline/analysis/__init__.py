"""What the records of a job say: where its time went, for whom its ranks waited, and what follows from it."""
