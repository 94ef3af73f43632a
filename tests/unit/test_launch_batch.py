"""
Batch files for Slurm: `batch_text` writes them, and `rehearse` predicts the ranks that one would
start.
"""

import pytest

from ddp_lessons.errors import BadInput
from ddp_lessons.launch import Cluster, batch_text, read_options, rehearse, wish_of
from ddp_lessons.launch.batch import minutes_of, split_options

CLUSTER = Cluster(nodes=8, cores=32, gpus=4, partition="long", hours=24)
PLAIN = Cluster(nodes=3, cores=16, gpus=0, partition="cpu", hours=1)


def placed(text, cluster=CLUSTER):
    """
    Return (rank, world size, node, threads) of each rank that a batch file would start.
    """
    rehearsal = rehearse(text, cluster)
    assert rehearsal.refused is None, rehearsal.refused
    assert not any(rank.is_outside for rank in rehearsal.ranks)
    return [(rank.rank, rank.world_size, rank.node, rank.threads) for rank in rehearsal.ranks]


def file_of(*lines):
    """
    Return a batch file with these lines.
    """
    return "\n".join(["#!/bin/bash", *lines, ""])


@pytest.mark.parametrize(
    ("cluster", "ranks", "each", "threads"),
    [(CLUSTER, 16, 4, 8), (CLUSTER, 2, 2, 16), (CLUSTER, 1, 1, 32), (PLAIN, 3, 1, 16)],
)
def test_batch_text_starts_the_ranks_that_were_asked_for(cluster, ranks, each, threads):
    """
    The batch file starts the requested ranks, one for each GPU or one for each node, and uses all
    cores.
    """
    text = batch_text(cluster, ranks, 45, "train.py")
    assert placed(text, cluster) == [(r, ranks, r // each, threads) for r in range(ranks)]
    rehearsal = rehearse(text, cluster)
    assert rehearsal.wish.minutes == 45
    assert rehearsal.wish.gpus_per_node == (each if cluster.gpus else 0)
    assert {rank.script for rank in rehearsal.ranks} == {("train.py",)}


TWO_NODES = ("#SBATCH -N 2 --ntasks-per-node=1", "#SBATCH -c 8 # cores")


@pytest.mark.parametrize(
    "line",
    [
        "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 2 --rdzv-endpoint n1:29500 train.py",
        "srun -n2 python -m torch.distributed.run --nnodes=2:2 --nproc_per_node=2"
        " --master-addr=$(scontrol show hostnames | head -n 1) train.py",
        "srun --ntasks=4 --export=ALL python train.py",
        "srun --ntasks-per-node 2 bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS"
        " LOCAL_RANK=$SLURM_LOCALID; exec python train.py'",
    ],
)
def test_there_are_many_ways_to_start_four_ranks(line):
    """
    A rehearsal finds the same four ranks, whichever command starts them.
    """
    text = file_of(*TWO_NODES, "export OMP_NUM_THREADS=3", line)
    assert sorted(placed(text)) == [(r, 4, r // 2, 3) for r in range(4)]


def test_torchrun_has_a_default_of_one_thread():
    """
    Without OMP_NUM_THREADS, torchrun gives each rank one thread; its warning about that is easily
    missed.
    """
    line = "srun torchrun --standalone --nproc-per-node=2 train.py --lr 0.1"
    assert placed(file_of(line)) == [(0, 2, 0, 1), (1, 2, 0, 1)]
    (one,) = rehearse(file_of("srun python -u train.py"), CLUSTER).ranks
    assert (one.threads, one.script) == (None, ("-u", "train.py"))


def test_slurm_fills_one_node_after_the_other():
    """
    Slurm fills one node after the other, but leaves a task for each: four tasks on two nodes are
    three and one.
    """
    assert wish_of({"nodes": "2", "ntasks": "4"}, CLUSTER).tasks_per_node == [3, 1]
    options = {"ntasks": "8", "cpus-per-task": "8"}
    assert wish_of(options, CLUSTER).tasks_per_node == [4, 4]
    options = {"ntasks": "6", "gpus-per-task": "1"}
    wish = wish_of(options, CLUSTER)
    assert (wish.tasks_per_node, wish.gpus_per_node) == ([4, 2], 4)
    assert wish_of({"nodes": "2"}, CLUSTER).tasks_per_node == [1, 1]
    assert wish_of({"ntasks": "4"}).tasks_per_node == [4]


def test_step_takes_what_the_job_has_unless_it_says_otherwise():
    """
    A step has the job's tasks and nodes unless its options change them: srun in a batch file starts
    all tasks of the job.
    """
    job = wish_of({"nodes": "2", "ntasks-per-node": "3"}, CLUSTER)
    assert wish_of({}, above=job).tasks_per_node == [3, 3]
    assert wish_of({"nodes": "1"}, above=job).tasks_per_node == [1]
    assert wish_of({"nodes": "1", "ntasks": "2"}, above=job).tasks_per_node == [2]


def test_what_no_srun_starts_runs_on_the_first_node():
    """
    A command without srun runs on the first node only, because a batch file is a script on one
    machine.
    """
    ranks = rehearse(file_of("#SBATCH -N 2", "torchrun --nproc-per-node 2 train.py"), CLUSTER).ranks
    assert [(rank.is_outside, rank.node) for rank in ranks] == [(True, 0), (True, 0)]
    assert rehearse(file_of("echo nothing"), CLUSTER).ranks == ()


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["#SBATCH --nodes=9"], "it asks for 9 nodes, and there are 8."),
        (["#SBATCH -n 5 --ntasks-per-node=5 -c 8"], "5 tasks of 8 cores need 40 on a node"),
        (["#SBATCH --gres=gpu:a100:5"], "it asks for 5 GPUs on a node, which has 4."),
        (["#SBATCH -G 5"], "it asks for 5 GPUs on a node"),
        (["#SBATCH --gpus-per-node=5"], "it asks for 5 GPUs on a node"),
        (["#SBATCH -t 1-0:30"], "it asks for 24.5 hours, and 24 are the most."),
        (["#SBATCH --partition=short"], "there is no partition 'short'."),
        (["#SBATCH --node=2"], "Unknown option: expected one of Slurm's (got '--node=2')"),
        (["#SBATCH --nodes"], "No value: expected one for --nodes (got none)"),
        (["#SBATCH --nodes=two"], "expected one from 1 for --nodes (got 'two')"),
        (["#SBATCH --gres=disk:1"], "expected --gres=gpu:N (got 'disk:1')"),
        (["#SBATCH nodes=2"], "expected --name=value (got 'nodes=2')"),
        (["#SBATCH --time=soon"], "expected hours:minutes:seconds (got 'soon')"),
        (["#SBATCH -N 2 -n 1"], "expected 2 to 64 of them on 2 nodes (got 1)"),
        (["cd nowhere"], "expected exit code 0 (got 1, "),
        (["srun"], "expected a command on at most 1 nodes after srun's options (got 'srun')"),
        (["srun -N 2 python train.py"], "expected a command on at most 1 nodes"),
        (["srun sh -c 'exit 3'"], "expected exit code 0 of 'sh' (got 3)"),
        (["srun no-such-program"], "expected that no-such-program runs"),
        (["mpiexec -n 2 python train.py"], "expected srun, torchrun or python (got 'mpiexec')"),
        (["srun torchrun --nproc-per-node=auto train.py"], "(got '1' and 'auto')"),
        (["srun torchrun --nnodes=2 train.py"], "expected --rdzv-endpoint for 2 nodes (got none)"),
    ],
)
def test_rehearsal_tells_what_slurm_or_the_shell_would_not_have(lines, fault):
    """
    A rehearsal reports what Slurm or the shell would refuse, before the job waits for an hour in a
    queue.
    """
    rehearsal = rehearse(file_of(*lines), CLUSTER)
    assert fault in rehearsal.refused


@pytest.mark.parametrize("text", ["", "srun python train.py\n", "#!\n", "#!/bin/nothing\n"])
def test_rehearsal_wants_a_shell_in_the_first_line(text):
    """
    A rehearsal demands a shell in the first line, as sbatch does.
    """
    assert rehearse(text, CLUSTER).refused


def test_options_below_the_first_command_do_not_count():
    """
    Options below the first command do not count: sbatch ignores them silently.
    """
    text = file_of("#SBATCH --nodes=2", "# words", "", "echo", "#SBATCH --ntasks-per-node=4")
    assert read_options(text) == {"nodes": "2"}


def test_options_are_split_from_the_command():
    """
    srun's options end before its command, which has its own options.
    """
    words = ["-n2", "--label", "--time", "5", "python", "-n", "3"]
    options = {"ntasks": "2", "label": "", "time": "5"}
    assert split_options(words) == (options, ["python", "-n", "3"])
    with pytest.raises(BadInput, match="Unknown option"):
        split_options(["-Z"])


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("90", 90), ("5:30", 5.5), ("1:30:00", 90), ("2-3", 3060), ("1-0:30", 1470)],
)
def test_minutes_of_slurms_times(time, minutes):
    """
    Slurm's time formats are read: "90" is minutes, and "5:30" minutes and seconds.
    """
    assert minutes_of(time) == minutes


def test_rehearsal_ends_a_file_that_does_not_end(monkeypatch):
    """
    A rehearsal ends a batch file with an endless loop, so that a check does not hang.
    """
    monkeypatch.setattr("ddp_lessons.launch.rehearsal._LIMIT_S", 0.2)
    assert "No end" in rehearse(file_of("while true; do :; done"), CLUSTER).refused
