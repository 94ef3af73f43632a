"""
Made-up jobs: the environment variables that each launcher would set in the processes of a job.
"""

from random import Random

from ddp_lessons.launch import Place

SIMULATED_LAUNCHERS = (
    "torchrun", "mpiexec", "mpiexec, told where", "srun", "srun, told where", "torchrun in srun",
    "mpiexec in sbatch", "nobody", "srun, told a port", "mpiexec in sbatch, not told",
    "nobody, in salloc", "torchrun in each task of srun",
)  # fmt: skip


def made_up_world(seed, launcher):
    """
    Return a job that a launcher has started: the environment and the Place of each process.

    Args:
        seed: The seed from which the job is drawn.
        launcher: A name in SIMULATED_LAUNCHERS.

    Returns:
        list: (environ, Place) of each rank of the job, in rank order.
    """
    draw = Random(f"{seed} {launcher}")
    num_nodes, each = draw.randint(2, 4), draw.randint(2, 4)
    names, nodes = _node_list(draw, num_nodes, seed)
    job = draw.randint(10_000, 999_999)
    told = draw.choice(names), draw.randint(30_000, 60_000)
    if launcher == "torchrun in each task of srun":
        return _torchrun_of_a_task(draw, job, nodes, names, told)
    others = {"HOME": "/home/me", "LANG": "C.UTF-8", "OMP_NUM_THREADS": str(draw.randint(1, 8))}
    made = []
    for rank in range(num_nodes * each):
        node, local = divmod(rank, each)
        slurm = _slurm(draw, job, nodes, names, num_nodes * each, each, rank)
        mpi = {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": num_nodes * each,
            "OMPI_COMM_WORLD_LOCAL_RANK": local,
            "OMPI_COMM_WORLD_LOCAL_SIZE": each,
            "OMPI_UNIVERSE_SIZE": 64,
        }
        master = {"MASTER_ADDR": told[0], "MASTER_PORT": told[1]}
        torch = {
            "RANK": rank,
            "WORLD_SIZE": num_nodes * each,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": each,
            "GROUP_RANK": node,
            "TORCHELASTIC_RESTART_COUNT": 0,
        }
        # A batch file, and torchrun in a task of srun, run as one process on each node. These are
        # Slurm's variables in that process.
        outer = _slurm(draw, job, nodes, names, num_nodes, 1, node)
        by_job = names[0], 20_000 + job % 10_000
        environ, (address, port) = {
            "torchrun": (torch | master, told),
            "mpiexec": (mpi, ("127.0.0.1", 29_500)),
            "mpiexec, told where": (mpi | master, told),
            "srun": (slurm, by_job),
            "srun, told where": (slurm | master, told),
            "torchrun in srun": (outer | torch | master, told),
            "mpiexec in sbatch": (outer | {"SLURM_PROCID": 0} | mpi | master, told),
            "nobody": ({}, ("127.0.0.1", 29_500)),
            "srun, told a port": (slurm | {"MASTER_PORT": told[1]}, (names[0], told[1])),
            "mpiexec in sbatch, not told": (
                outer | {"SLURM_PROCID": 0} | mpi,
                ("127.0.0.1", 29_500),
            ),
            "nobody, in salloc": (
                {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": nodes},
                ("127.0.0.1", 29_500),
            ),
        }[launcher]
        place = Place(rank, num_nodes * each, local, address, port)
        if launcher.startswith("nobody"):
            place = Place(0, 1, 0, address, port)
        environ = {name: str(value) for name, value in {**others, **environ}.items()}
        made.append((environ, place))
    return made


def _torchrun_of_a_task(draw, job, nodes, names, told):
    """
    Return a job of torchrun that only the last task of srun has started.

    So its rank 0 is not in Slurm's task 0.
    """
    each, task = draw.randint(2, 4), len(names) - 1
    made = []
    for rank in range(each):
        environ = _slurm(draw, job, nodes, names, len(names), 1, task) | {
            "RANK": rank,
            "WORLD_SIZE": each,
            "LOCAL_RANK": rank,
            "MASTER_ADDR": told[0],
            "MASTER_PORT": told[1],
        }
        place = Place(rank, each, rank, *told)
        made.append(({name: str(value) for name, value in environ.items()}, place))
    return made


def _slurm(draw, job, nodes, names, num_tasks, each, rank):
    node, local = divmod(rank, each)
    return {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NNODES": len(names),
        "SLURM_NODEID": node,
        "SLURMD_NODENAME": names[node],
        "SLURM_NTASKS": num_tasks,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local,
    }


def _node_list(draw, num, seed):
    """
    Return the names of some machines, and the text by which Slurm lists them.
    """
    word, first = draw.choice(("n", "gpu", "rack2-", "a100x")), draw.randint(1, 90)
    style = ("zeros", "range", "parts", "commas", "mixed")[seed % 5]
    numbers = [str(first + step) for step in range(num)]
    if style == "zeros":
        numbers = [f"{first % 9 + 1 + step:03}" for step in range(num)]
    names = [f"{word}{number}" for number in numbers]
    if style in ("range", "zeros"):
        return names, f"{word}[{numbers[0]}-{numbers[-1]}]"
    if style == "parts":
        return names, f"{word}[{numbers[0]},{numbers[1]}{_rest(numbers)}]"
    if style == "mixed":
        names[-1] = "big" + names[-1]
        inside = f"[{numbers[0]}-{numbers[-2]}]" if num > 2 else numbers[0]
        return names, f"{word}{inside},{names[-1]}"
    return names, ",".join(names)


def _rest(numbers):
    return f",{numbers[2]}-{numbers[-1]}" if len(numbers) > 2 else ""
