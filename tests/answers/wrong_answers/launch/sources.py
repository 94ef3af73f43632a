"""
Sources from which the answers of exercise 09 are made.
"""

from bank import changing

PLACE = """\
def find_place(environ):
    if "RANK" in environ:
        words = ["RANK", "WORLD_SIZE", "LOCAL_RANK"]
    elif "OMPI_COMM_WORLD_RANK" in environ:
        words = [f"OMPI_COMM_WORLD_{word}" for word in ("RANK", "SIZE", "LOCAL_RANK")]
    elif "SLURM_PROCID" in environ:
        words = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"]
    else:
        words = None
    numbers = [int(environ[word]) for word in words] if words else [0, 1, 0]
    address, port = "127.0.0.1", 29500
    if words and words[0] == "SLURM_PROCID":
        nodes = environ["SLURM_JOB_NODELIST"]
        head, bracket, inside = nodes.partition("[")
        if bracket and "," not in head:
            address = head + inside.replace("-", ",").replace("]", ",").split(",")[0]
        else:
            address = nodes.split(",")[0]
        port = 20000 + int(environ["SLURM_JOB_ID"]) % 10000
    address = environ.get("MASTER_ADDR", address)
    port = int(environ.get("MASTER_PORT", port))
    return {
        "rank": numbers[0],
        "world_size": numbers[1],
        "local_rank": numbers[2],
        "address": address,
        "port": port,
    }
"""

BATCH = """\
def batch_file(cluster, job):
    each = min(job["ranks"], cluster["gpus"] or 1)
    threads = cluster["cores"] // each
    lines = [
        "#!/bin/bash",
        f"#SBATCH --partition={cluster['partition']}",
        f"#SBATCH --nodes={job['ranks'] // each}",
        f"#SBATCH --ntasks-per-node={each}",
        f"#SBATCH --cpus-per-task={threads}",
        f"#SBATCH --time={job['minutes']}",
    ]
    if cluster["gpus"]:
        lines.append(f"#SBATCH --gpus-per-node={each}")
    lines.append(f"export OMP_NUM_THREADS={threads}")
    lines.append(f"srun python {job['script']}")
    return "\\n".join(lines) + "\\n"
"""

SURVIVE = """\
import os
import torch
import torch.distributed as dist

def survive(run, path, num_steps):
    if path.exists():
        state = torch.load(path)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.step = state["step"]
    while run.step < num_steps:
        run.train_step()
        if dist.get_rank() == 0:
            state = {
                "model": run.model.state_dict(),
                "optimizer": run.optimizer.state_dict(),
                "step": run.step,
            }
            beside = path.with_suffix(".new")
            torch.save(state, beside)
            os.replace(beside, path)
"""

FAILED = """\
import re

def who_failed(folder):
    report = (folder / "torchrun.txt").read_text()
    blocks = re.findall(r"rank +: (\\d+).*\\n +exitcode +: (-?\\d+)", report)
    codes = {int(rank): int(code) for rank, code in blocks}
    if not codes:
        return None, "stopped"
    last = {}
    for rank in range(3):
        log = (folder / f"rank-{rank}.txt").read_text()
        end = log.rpartition("Traceback")[2]
        errors = re.findall(r"^(\\w+): ", end, re.MULTILINE)
        last[rank] = errors[-1] if errors else None
        if f"rank {rank}: step" in end:
            last[rank] = None
    for rank in range(3):
        if last[rank] not in (None, "ConnectionError"):
            return rank, "raised"
    for rank in range(3):
        code = codes.get(rank, 0)
        if last[rank] is None and code != -15:
            return rank, "left" if code == 0 else "exited" if code > 0 else "killed"
"""

SOURCES = {"09.1": PLACE, "09.2": SURVIVE, "09.3": BATCH, "09.4": FAILED}

altered = changing(SOURCES)
