"""
Jobs outside of the notebook's ranks, started by a cell: torchrun, mpiexec, srun, any command.

    with start_job("torchrun --nproc-per-node 2 train.py") as job:
        job.wait(30)                # the exit code, or None if it still runs
    print(job.stdout)

No process of a job outlives the block, nor the notebook's kernel, however that ends: see `owned`.
"""

from ddp_lessons.jobs.job import Job, run_job, start_job

__all__ = ["Job", "run_job", "start_job"]
