"""ringrun --transport mpi: which MPIs there are, which one mpi4py loads, and its mpirun."""
