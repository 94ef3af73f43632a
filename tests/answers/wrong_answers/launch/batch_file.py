"""
Answers to task 09.3.
"""

from bank import Answer

from wrong_answers.launch.sources import altered

SRUN = "srun python {job['script']}"
PER_NODE = """        f"#SBATCH --ntasks-per-node={each}",\n"""
CORES = """        f"#SBATCH --cpus-per-task={threads}",\n"""

ANSWERS = [
    altered("09.3", "forgets srun", "no-srun", ("srun python", "python")),
    altered(
        "09.3",
        "returns lines",
        "no-text",
        ('    return "\\n".join(lines) + "\\n"', "    return lines"),
    ),
    altered("09.3", "forgets the shell", "refused", ('        "#!/bin/bash",\n', "")),
    altered(
        "09.3",
        "asks for cores below a command",
        "unread",
        (CORES, """        f"export OMP_NUM_THREADS={threads}",\n""" + CORES),
    ),
    altered(
        "09.3", "takes a node a rank", "nodes", ("    each = min(job", "    each = 1 or min(job")
    ),
    altered(
        "09.3",
        "starts torchrun on each task",
        "ranks",
        (SRUN, "srun torchrun --nproc-per-node={each} {job['script']}"),
    ),
    altered("09.3", "runs the script of the text", "script", ("{job['script']}", "main.py")),
    altered("09.3", "leaves cores to others", "cores", (CORES, "")),
    altered(
        "09.3",
        "asks for no GPU",
        "gpus",
        ('lines.append(f"#SBATCH --gpus-per-node={each}")', "pass"),
    ),
    altered("09.3", "asks for a day", "queue", ("{job['minutes']}", "1-0")),
    altered(
        "09.3", "has one thread", "threads", ("OMP_NUM_THREADS={threads}", "OMP_NUM_THREADS=1")
    ),
    altered(
        "09.3",
        "divides by no GPU",
        "raised",
        ('cluster["gpus"] or 1)', 'cluster["gpus"])'),
    ),
    altered(
        "09.3",
        "tells the others",
        "forbidden",
        (
            "    lines = [",
            "    import torch.distributed as dist\n    dist.barrier()\n    lines = [",
        ),
    ),
    altered(
        "09.3",
        "starts a torchrun a node",
        None,
        (PER_NODE, '        "#SBATCH --ntasks-per-node=1",\n'),
        (CORES, """        f"#SBATCH -c {cluster['cores'] // each * each}",\n"""),
        (
            SRUN,
            "srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node={each} --rdzv-backend=c10d "
            "--rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$(scontrol show hostnames "
            "\\\"$SLURM_JOB_NODELIST\\\" | head -n 1):29500 {job['script']}",
        ),
    ),
    altered(
        "09.3",
        "asks for 0 GPUs where there are none",
        None,
        ('    if cluster["gpus"]:\n        lines', "    if True:\n        lines"),
        ("--gpus-per-node={each}", "--gpus-per-node={each if cluster['gpus'] else 0}"),
    ),
    Answer(
        "09.3",
        "lets the shell reckon",
        None,
        """\
def batch_file(cluster, job):
    gpus, ranks = cluster["gpus"], job["ranks"]
    each = ranks if gpus and ranks < gpus else max(gpus, 1)
    hours, minutes = divmod(job["minutes"], 60)
    return f'''#!/usr/bin/env bash
#SBATCH -J training -o %x-%j.out
#SBATCH -p {cluster["partition"]} -t {hours}:{minutes:02}:00
#SBATCH -N {ranks // each} -n {ranks} --ntasks-per-node {each}
#SBATCH -c {cluster["cores"] // each}
{f"#SBATCH --gres=gpu:{each}" if gpus else "# no GPU"}
set -euo pipefail
OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK srun --label -c "$SLURM_CPUS_PER_TASK" \\\\
    bash -c 'echo "$SLURM_PROCID on $SLURMD_NODENAME"; exec python -u {job["script"]}'
'''
""",
    ),
    Answer(
        "09.3",
        "uses the package",
        None,
        """\
from ddp_lessons.launch import Cluster, batch_text

def batch_file(cluster, job):
    return batch_text(Cluster(**cluster), job["ranks"], job["minutes"], job["script"])
""",
    ),
]
