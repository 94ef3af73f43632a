# %% [markdown] tags=["title"]
# # Exercise 09: scripts that any launcher can start
#
# 60 minutes, after lesson `09_launch`.
# Stuck? `hint("09.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import launch as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 09.1 Find your place
#
# `environ` is a dictionary of texts, as `os.environ` is: the environment of a process that some
# launcher has started, on a machine that you have never seen. Return a dictionary that tells its
# place: `rank`, `world_size`, `local_rank` and `port`, which are whole numbers, and `address`, a
# text. The launchers have these words:
#
# | started by | rank | world size | local rank |
# | --- | --- | --- | --- |
# | torchrun | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` |
# | mpiexec | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` |
# | srun | `SLURM_PROCID` | `SLURM_NTASKS` | `SLURM_LOCALID` |
# | nobody | 0 | 1 | 0 |
#
# Address and port are `MASTER_ADDR` and `MASTER_PORT`, each if it is there, whoever has set it.
# Otherwise they are 127.0.0.1 and 29500. Only srun's ranks may be on several machines: theirs meet
# on the first of `SLURM_JOB_NODELIST`, at port 20000 + `SLURM_JOB_ID` modulo 10000. Such a list may
# be `n1`, or `a5,b7`, or short for several: `gpu[07-09,12],big1` begins with `gpu07`.
#
# A task of srun may start torchrun, and a batch file mpiexec. Then their processes have Slurm's
# words as well, which tell the place of the one that has started them. Read `environ` alone, and
# change nothing: `os.environ` is here that of a rank of this notebook.


# %% tags=["answer"]
# %%px
def find_place(environ):
    """
    Return rank, world_size, local_rank, address and port as a dictionary.
    """
    # which launcher has started this process? take its three numbers
    # then address and port: as told, or by the rules above
    # solution
    rows = (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    )
    words = next((row for row in rows if row[0] in environ), None)
    rank, world_size, local_rank = (
        (int(environ[word]) for word in words) if words else (0, 1, 0)
    )
    address, port = "127.0.0.1", 29500
    if words == rows[2]:
        name, _, inside = environ["SLURM_JOB_NODELIST"].partition("[")
        if "," in name or not inside:
            address = name.split(",")[0]
        else:
            number = "".join(c if c.isdigit() else " " for c in inside).split()[0]
            address = name + number
        port = 20000 + int(environ["SLURM_JOB_ID"]) % 10000
    return {
        "rank": rank,
        "world_size": world_size,
        "local_rank": local_rank,
        "address": environ.get("MASTER_ADDR", address),
        "port": int(environ.get("MASTER_PORT", port)),
    }
    # end of solution


# %% tags=["check"]
check.find_place()

# %% [markdown] tags=["task"]
# What each rank has found for a process under some launchers: its rank, and of how many.

# %% tags=["picture"]
check.find_place.picture()

# %% [markdown] tags=["task"]
# ## 09.2 Survive a restart
#
# This function is the whole script of a job. The ranks are in a group. Each time the job is
# started, by torchrun after a failure or as a new job of Slurm, every rank calls it with a `run` that
# has made no step, and the same `path`, a `pathlib.Path` on a disk that all ranks share. Nothing but
# that file comes over from an earlier life.
#
# `run.train_step()` makes the next step, all ranks together, and adds 1 to `run.step`. Return when
# `run.step` is `num_steps`, which counts the steps of all lives. The weights must then be those of
# a run that nothing has ended, to the last bit. `run.model` is a module, `run.optimizer` has
# momentum; all ranks hold the same.
#
# A life may end in any step. No step that was complete may be made again. A life may also end in the
# middle of a save: then the last complete step may be lost, and no more. Let rank 0 save.

# %% tags=["answer"]
# %%px
import os

import torch
import torch.distributed as dist


def survive(run, path, num_steps):
    """
    Train to step num_steps, from wherever an earlier life has come to. Return nothing.
    """
    # take up what an earlier life has left, if there is something
    # then make the steps that are missing, and leave what a later life needs
    # solution
    if path.exists():
        state = torch.load(path)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.step = state["step"]
    while run.step < num_steps:
        run.train_step()
        if dist.get_rank() == 0:
            parts = {"model": run.model, "optimizer": run.optimizer}
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state | {"step": run.step}, path.with_name("new"))
            os.replace(path.with_name("new"), path)
    # end of solution


# %% tags=["check"]
check.survive()

# %% [markdown] tags=["task"]
# The steps that your ranks have made in each life.

# %% tags=["picture"]
check.survive.picture()

# %% [markdown] tags=["task"]
# ## 09.3 Write the batch file
#
# Return the text of a batch file. `cluster` is a dictionary that describes a cluster, whose nodes are
# alike: "nodes", how many there are; of each node its "cores" and "gpus", perhaps 0; "partition", the
# queue to name; and "hours", the longest that a job may take. `job` is a dictionary, too: "ranks",
# how many are wanted; "minutes", which is to be the time limit; and "script", a file that finds its
# place as in 09.1.
#
# One rank a GPU, or one rank a node where there are none; on as few nodes as can be, and equally
# many on each. The ranks fill all GPUs of their nodes, or are fewer than one node has. The cores of a
# node are shared equally among its ranks, and what does not divide is left over. Ask for these cores,
# and have each rank use as many threads. Ask for a GPU for each rank.
#
# Slurm's options: `--nodes`, `--ntasks-per-node`, `--cpus-per-task`, `--gpus-per-node`,
# `--partition` and `--time`, a number of minutes. Threads are told by `OMP_NUM_THREADS`. Your file
# is rehearsed, as in the lesson: any way to start the right ranks by `srun` is right.


# %% tags=["answer"]
# %%px
def batch_file(cluster, job):
    """
    Return the text of a batch file for a job.
    """
    # how many ranks on a node, how many nodes, how many cores for each rank?
    # solution
    each = min(job["ranks"], cluster["gpus"] or 1)
    threads = cluster["cores"] // each
    gpus = f"#SBATCH --gpus-per-node={each}" if cluster["gpus"] else ""
    return f"""#!/bin/bash
#SBATCH --partition={cluster["partition"]}
#SBATCH --nodes={job["ranks"] // each}
#SBATCH --ntasks-per-node={each}
#SBATCH --cpus-per-task={threads}
#SBATCH --time={job["minutes"]}
{gpus}
export OMP_NUM_THREADS={threads}
srun --cpus-per-task={threads} python {job["script"]}
"""
    # end of solution


# %% tags=["check"]
check.batch_file()

# %% [markdown] tags=["task"]
# Each of your ranks has written a file for another cluster. This is what would be started there.

# %% tags=["picture"]
check.batch_file.picture()

# %% [markdown] tags=["task"]
# ## 09.4 Tell six logs apart
#
# Six jobs ran under torchrun, with 3 ranks each, and something happened to each: their logs were
# recorded. `folder`, a `pathlib.Path`, holds the logs of one job: `torchrun.txt`, what torchrun has
# printed, and `rank-0.txt` to `rank-2.txt`, what the ranks have printed. Find the rank that took the
# others along. Return a tuple `(rank, why)`, where why is
#
# - `"raised"`: it raised an error that it did not survive;
# - `"exited"`: it ended itself with an exit code above 0, and raised nothing;
# - `"killed"`: a signal ended it that was not torchrun's;
# - `"left"`: it ended with exit code 0, while the others still worked;
# - `"stopped"`: torchrun was told to end; then rank is None.
#
# Victims are the ranks that lose a peer, which here raises a `ConnectionError`, and the ranks that
# torchrun ends by `SIGTERM`, exit code -15. A rank may print the traceback of an `OSError` and survive
# it: then it goes on with its steps. Another rank may raise an `OSError` that it does not survive. And
# a rank may raise, and take long to end.

# %% tags=["answer"]
# %%px
import re


def who_failed(folder):
    """
    Return (rank, why) of a job that failed, from its logs.
    """
    # solution
    report = (folder / "torchrun.txt").read_text()
    codes = {
        int(rank): int(code)
        for rank, code in re.findall(r"rank +: (\d+).*\n +exitcode +: (-?\d+)", report)
    }
    if not codes:
        return None, "stopped"
    silent = []
    for rank in range(3):
        log = (folder / f"rank-{rank}.txt").read_text()
        end = log.rpartition("Traceback")[2]
        errors = re.findall(r"^(\w+): ", end, re.MULTILINE)
        if not errors or f"rank {rank}: step" in end:
            silent.append(rank)
        elif errors[-1] != "ConnectionError":
            return rank, "raised"
    # of the ranks that lost no peer, one was not ended by torchrun
    rank = next(rank for rank in silent if codes.get(rank, 0) != -15)
    code = codes.get(rank, 0)
    return rank, "left" if code == 0 else "exited" if code > 0 else "killed"
    # end of solution


# %% tags=["check"]
check.who_failed()

# %% [markdown] tags=["task"]
# Who had which logs, and what you have found.

# %% tags=["picture"]
check.who_failed.picture()

# %% tags=["teardown"]
ranks.stop()
