"""What touches the module mpi4py: start-up, how a job ends, and MPI's own collectives, the reference of ours."""
