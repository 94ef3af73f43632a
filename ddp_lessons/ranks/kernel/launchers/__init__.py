"""
The launchers of ranks: through the supervisor, mpiexec, Slurm or SSH.
"""
