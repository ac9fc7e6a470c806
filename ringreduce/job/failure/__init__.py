"""What a rank that fails tells: the other ranks, its launcher, and who looks at a report of it afterwards."""
