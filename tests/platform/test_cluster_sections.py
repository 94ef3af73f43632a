"""
Tests that run the files and commands of the lessons' sections "On your own cluster".

There are no GPUs and no second machine here. So the files run on CPUs with Gloo, with two processes
on each node. The two nodes are hosts that `scripts/hosts.sh` makes, or those of a temporary Slurm.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from lessons import STEMS, sources
from throw_away_slurm import needs_slurm, running_slurm

from ddp_lessons.launch import free_port
from ddp_lessons.many_machines import TestBed, why_no_hosts

LIMIT_S = 150.0
"""
Limit for a command on a slow machine. It ends a hang.
"""
_ON_CPUS = (
    (r".*torch\.cuda\.set_device\(.*\n", ""),
    (r".*torch\.cuda\.synchronize\(.*\n", ""),
    (r", device_id=torch\.device\([^)]*\)", ""),
    (r", device_ids=\[\w+\]", ""),
    (r'"nccl"', '"gloo"'),
    (r'"cuda"', '"cpu"'),
    (r"\.cuda\(\)", ""),
)
_SMALLER = {
    "03_ring": ((r", 10\*\*9", ""),),
    "05_replicas": ((r"1024", "64"), (r"range\(100\)", "range(3)")),
    "07_accumulation": ((r"1024", "64"), (r"range\(100\)", "range(3)")),
}
"""
Changes that let a lesson's file compute less here, because CPUs would take minutes.
"""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(stem, language):
    """
    Return the blocks of code in a language that the cluster cells of a lesson show.
    """
    text = "\n".join(sources(stem, "cluster"))
    return [block for found, block in _BLOCK.findall(text) if found == language]


def commands(stem):
    """
    Return the `torchrun` commands of a lesson's cluster cells, each on one line.
    """
    text = "\n".join(blocks(stem, "console")).replace("\\\n", " ")
    lines = [" ".join(line.removeprefix("$ ").split()) for line in text.splitlines()]
    return [line for line in lines if "torchrun" in line]


def on_two_processes(command, port):
    """
    Return a command of the lesson with two processes a node, and with this machine as first node.
    """
    command = command.replace("--nproc-per-node=8", "--nproc-per-node=2")
    return re.sub(r'"?(node1|\$first_node):29500"?', f"127.0.0.1:{port}", command)


def words_of(command, port=None):
    """
    Return a command of the lesson as a list, without a shell: variables before it are set by `env`.
    """
    return ["env", *shlex.split(on_two_processes(command, port))]


def write_script(stem, folder, world_size):
    """
    Write the lesson's Python file, changed for CPUs, under the name that its commands give it. It
    fails in a world of another size.
    """
    [script] = blocks(stem, "python")
    for pattern, here in _ON_CPUS:
        script = re.sub(pattern, here, script)
    for pattern, here in _SMALLER.get(stem, ()):
        script, num_changes = re.subn(pattern, here, script)
        assert num_changes, f"{stem}: change _SMALLER, because the file has no {pattern}"
    assert "cuda" not in script
    check = f'import os\nassert os.environ["WORLD_SIZE"] == "{world_size}"\n'
    (folder / commands(stem)[0].split()[-1]).write_text(check + script)


def environment():
    """
    Return an environment in which `torchrun` is that of the tests' Python, with one thread a rank.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run_on_one_node(stem, folder):
    """
    Run the lesson's command for one node in a folder with its file, and return what rank 0 printed.
    """
    [one_node] = [command for command in commands(stem) if "--standalone" in command]
    done = subprocess.run(
        words_of(one_node), cwd=folder, env=environment(), capture_output=True, text=True,
        check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


WITH_CLUSTER = [stem for stem in STEMS if any(blocks(stem, "python")) and commands(stem)]
WITH_SLURM = [stem for stem in WITH_CLUSTER if blocks(stem, "bash")]


def test_every_core_lesson_has_files_and_commands():
    """
    Lessons 01 to 08 have a section for a cluster. A lesson without one would have no test below.
    """
    assert WITH_CLUSTER[:8] == STEMS[1:9]


@pytest.mark.parametrize("stem", WITH_CLUSTER)
def test_one_node_runs_the_file(stem, tmp_path):
    """
    The command for one node runs the lesson's file, and rank 0 prints a result.
    """
    write_script(stem, tmp_path, world_size=2)
    assert run_on_one_node(stem, tmp_path).strip()


def test_checkpoint_of_a_shorter_run_is_continued(tmp_path):
    """
    The file of lesson 08, started again in the same folder, begins after the last saved epoch.
    """
    stem = "08_checkpoint"
    write_script(stem, tmp_path, world_size=2)
    script = tmp_path / commands(stem)[0].split()[-1]
    whole, saved = script.read_text(), []
    for num_epochs in (2, 5):
        script.write_text(whole.replace("while epoch < 5:", f"while epoch < {num_epochs}:"))
        saved.append(re.findall(r"saved epoch (\d+)", run_on_one_node(stem, tmp_path)))
    assert saved == [["1", "2"], ["3", "4", "5"]]


@pytest.fixture(scope="module")
def bed():
    """
    Two hosts, node1 and node2, which share this machine's files and cores.
    """
    if reason := why_no_hosts():
        pytest.skip(reason)
    with TestBed(2) as hosts:
        yield hosts


@pytest.mark.parametrize("stem", [stem for stem in WITH_CLUSTER if stem not in WITH_SLURM])
def test_two_nodes_run_the_file(stem, bed, tmp_path):
    """
    The command for two nodes, given on both, makes one world of both.
    """
    write_script(stem, tmp_path, world_size=4)
    [command] = [command for command in commands(stem) if "--nnodes=2" in command]
    command = command.replace("--nproc-per-node=8", "--nproc-per-node=2")
    path = shlex.quote(str(Path(sys.executable).parent))
    words = ["sh", "-c", f'cd {tmp_path} && PATH={path}:"$PATH" exec env {command}']
    jobs = [bed.start(number, words) for number in (1, 2)]
    statuses = [job.wait(LIMIT_S) for job in jobs]
    assert statuses == [0, 0], "\n".join(job.stderr for job in jobs)
    assert "".join(job.stdout for job in jobs).strip()


@needs_slurm
@pytest.mark.parametrize("stem", WITH_SLURM)
def test_slurm_runs_the_batch_file(stem, tmp_path):
    """
    Slurm accepts the lesson's batch file, and two nodes run the lesson's file. The cluster here has
    no GPUs, so the option that asks for them is left out.
    """
    write_script(stem, tmp_path, world_size=4)
    [batch] = blocks(stem, "bash")
    assert batch.startswith("#!/bin/bash\n")
    batch = re.sub(r" ?--gpus-per-node=8", "", batch)
    batch = re.sub(r"^#SBATCH$\n", "", on_two_processes(batch, free_port()), flags=re.MULTILINE)
    (tmp_path / "job.sh").write_text(re.sub(r"--cpus-per-task=\d+", "--cpus-per-task=2", batch))
    with running_slurm():
        done = subprocess.run(
            ["sbatch", "--wait", "--output=out.txt", "job.sh"],
            cwd=tmp_path, env=environment() | {"SLURM_CONF": os.environ["SLURM_CONF"]},
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr + (tmp_path / "out.txt").read_text()
    assert (tmp_path / "out.txt").read_text().strip()
