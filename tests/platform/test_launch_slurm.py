"""
Tests that a rehearsal of a batch file predicts what Slurm does.
"""

import subprocess

import pytest
from throw_away_slurm import needs_slurm, running_slurm

from ddp_lessons.launch import Cluster, rehearse

CLUSTER = Cluster(nodes=2, cores=4, gpus=0, partition="debug", hours=1)
"""
The cluster that scripts/slurm.sh starts.
"""

pytestmark = needs_slurm


@pytest.fixture(scope="module", autouse=True)
def own_slurm():
    """
    Start a Slurm in which no other test's job holds a node.
    """
    with running_slurm():
        yield


def handed_in(text, folder, *options):
    """
    Submit a batch file, and return the completed sbatch process.
    """
    (folder / "job.sh").write_text(text)
    return subprocess.run(
        ["sbatch", *options, f"--output={folder}/out.txt", "job.sh"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        ["--nodes=2", "--ntasks-per-node=2"],
        ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4"],
        ["--nodes=2", "--ntasks=4"],
        ["--ntasks=3"],
        ["--ntasks=2", "--cpus-per-task=3"],
    ],
)
def test_tasks_are_where_the_rehearsal_puts_them(options, tmp_path):
    """
    Slurm places each task on the node that the rehearsal predicts, with the same rank and world
    size.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "srun python train.py"]
    text = "\n".join([*lines, ""])
    foretold = rehearse(text, CLUSTER)
    assert foretold.refused is None
    told = "sh -c 'echo $SLURM_PROCID $SLURM_NTASKS $SLURMD_NODENAME'"
    done = handed_in(text.replace("python train.py", told), tmp_path, "--wait")
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in sorted((tmp_path / "out.txt").read_text().splitlines())]
    # Number nodes by the order of their ranks: Slurm may take either free node first.
    nodes = list(dict.fromkeys(node for _, _, node in found))
    placed = [(int(rank), int(world_size), nodes.index(node)) for rank, world_size, node in found]
    assert placed == [(one.rank, one.world_size, one.node) for one in foretold.ranks]


@pytest.mark.parametrize(
    "option", ["--nodes=3", "--ranks=2", "--partition=night", "--ntasks-per-node=5"]
)
def test_what_the_rehearsal_refuses_slurm_refuses(option, tmp_path):
    """
    Slurm refuses each batch file that the rehearsal refuses, so the rehearsal raises no false
    alarm.
    """
    text = f"#!/bin/bash\n#SBATCH {option}\nsrun true\n"
    assert rehearse(text, CLUSTER).refused
    assert handed_in(text, tmp_path, "--test-only").returncode != 0
