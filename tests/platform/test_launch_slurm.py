"""
A rehearsal says what Slurm itself does.
"""

import subprocess

import pytest
from throw_away_slurm import needs_slurm, running_slurm

from ddp_lessons.launch import Cluster, rehearse

CLUSTER = Cluster(nodes=2, cores=4, gpus=0, partition="debug", hours=1)
"""
What scripts/slurm.sh starts.
"""

pytestmark = needs_slurm


@pytest.fixture(scope="module", autouse=True)
def own_slurm():
    """
    Give a Slurm in which no other test's job holds a node.
    """
    with running_slurm():
        yield


def handed_in(text, folder, *options):
    """
    Hand a batch file in, and return what Slurm says.
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
    Each task tells its number, the number of all, and its node.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "srun python train.py"]
    text = "\n".join([*lines, ""])
    foretold = rehearse(text, CLUSTER)
    assert foretold.refused is None
    told = "sh -c 'echo $SLURM_PROCID $SLURM_NTASKS $SLURMD_NODENAME'"
    done = handed_in(text.replace("python train.py", told), tmp_path, "--wait")
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in sorted((tmp_path / "out.txt").read_text().splitlines())]
    # Nodes by the order of their ranks: which of two free ones Slurm takes first is its own affair.
    nodes = list(dict.fromkeys(node for _, _, node in found))
    placed = [(int(rank), int(world_size), nodes.index(node)) for rank, world_size, node in found]
    assert placed == [(one.rank, one.world_size, one.node) for one in foretold.ranks]


@pytest.mark.parametrize(
    "option", ["--nodes=3", "--ranks=2", "--partition=night", "--ntasks-per-node=5"]
)
def test_what_the_rehearsal_refuses_slurm_refuses(option, tmp_path):
    """
    A refusal that is none would be a false alarm.
    """
    text = f"#!/bin/bash\n#SBATCH {option}\nsrun true\n"
    assert rehearse(text, CLUSTER).refused
    assert handed_in(text, tmp_path, "--test-only").returncode != 0
