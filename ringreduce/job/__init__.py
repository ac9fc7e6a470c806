"""What brings the ranks of a job together and keeps it: places, rendezvous, MPI, process sets, how a job ends."""
