"""
The commands for Slurm and mpiexec, and the parsing of their output. No rank is started here.
"""

import os
from types import SimpleNamespace

import pytest
from ipyparallel.cluster.launcher import LauncherError
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.ranks.kernel.launchers.mpi import first_death
from ddp_lessons.ranks.kernel.launchers.slurm import SlurmRankProcesses
from ddp_lessons.ranks.kernel.launchers.slurm_job import SlurmEngineSetLauncher, SlurmJob
from ddp_lessons.ranks.kernel.supervisor_client import SupervisorClient
from ddp_lessons.ranks.rank.host_info import count_by_host, host_info
from ddp_lessons.ranks.rank.rank_engine import RankEngine

KILLED = """--------------------------------------------------------------------------
mpiexec noticed that process rank 2 with PID 0 on node box exited on signal 9 (Killed).
--------------------------------------------------------------------------"""
EXITED = """mpiexec detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[51087,1],1]
  Exit code:    3
--------------------------------------------------------------------------"""

EXITED_BY_SRUN = "srun: error: n1: task 2: Exited with exit code 7"
KILLED_BY_SRUN = "srun: error: n1: tasks 0-1,3: Killed"


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """
    Return a launcher that has started nothing, in a folder where no file may be left.
    """
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return SlurmEngineSetLauncher(profile_dir=str(tmp_path), cluster_id="few")


def fake(patch, tmp_path, name, text):
    """
    Put a command at the front of the PATH.
    """
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o700)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (KILLED, ", and rank 2 ended by signal 9 (Killed)"),
        (EXITED, ", and rank 1 exited with code 3"),
        ("nothing of use", ""),
    ],
)
def test_first_death_is_read_from_what_mpiexec_says(said, told):
    """
    The first death is read from mpiexec's output: of four ranks that ended, only one did so without
    being ended by mpiexec.
    """
    assert first_death(said) == told


@pytest.mark.parametrize(
    ("job", "said", "waits", "runs", "is_over"),
    [
        (SlurmJob("7", "PENDING", "Resources"), "job 7 is PENDING (Resources)", True, False, False),
        (SlurmJob("7", "RUNNING", "None"), "job 7 is RUNNING", False, True, False),
        (SlurmJob("7", "COMPLETING", "None"), "job 7 is COMPLETING", False, False, False),
        (SlurmJob("7", "TIMEOUT", "TimeLimit"), "job 7 is TIMEOUT (TimeLimit)", False, False, True),
        (SlurmJob("7", ""), "job 7 is over", False, False, True),
    ],
)
def test_jobs_are_told_in_words_of_slurm(job, said, waits, runs, is_over):
    """
    A job's state is reported in Slurm's own words, which the learner can look up and an
    administrator knows.
    """
    assert str(job) == said
    assert (job.waits, job.runs, job.is_over) == (waits, runs, is_over)


def test_script_has_what_was_configured_and_is_left_nowhere(launcher, tmp_path, monkeypatch):
    """
    The batch script contains the configured options, and is deleted. ipyparallel ignores some of
    the options, and leaves its script in the folder.
    """
    launcher.options, launcher.queue, launcher.account = "--nodes=2 --mem=1G", "short", "physics"
    fake(monkeypatch, tmp_path, "sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 17")
    assert launcher.start(4) == "17"
    lines = (tmp_path / "script").read_text().splitlines()
    words = ("nodes=2 --mem=1G", "partition=short", "account=physics", "ntasks=4", "no-requeue")
    for each in words:
        assert f"#SBATCH --{each}" in lines
    assert os.listdir() == []


@pytest.mark.parametrize("line", ["--ntasks={n}", "-n {n}", "--ntasks {n}"])
def test_script_that_says_how_many_tasks_is_left_so(launcher, tmp_path, monkeypatch, line):
    """
    A script that sets the number of tasks is not changed, because Slurm uses the last of two such
    lines. Similar lines, such as `--nodes`, do not set it.
    """
    launcher.batch_template = f"#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH {line}\nsrun true\n"
    fake(monkeypatch, tmp_path, "sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 17")
    launcher.start(4)
    lines = (tmp_path / "script").read_text().splitlines()
    assert [one for one in lines if "-n" in one] == ["#SBATCH --nodes=2", f"#SBATCH {line[:-3]}4"]


def test_job_knows_nothing_of_the_job_that_it_is_started_in(launcher, tmp_path, monkeypatch):
    """
    A job does not inherit the variables of the job that the notebook runs in: a hub may run it in
    one of Slurm, with other numbers than its ranks.
    """
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MY_DATA", "/data")
    launcher.environment = {"WORLD_SIZE": "4", "SLURM_WAIT": "0"}
    fake(monkeypatch, tmp_path, "sbatch", f"env > {tmp_path}/env; echo Submitted batch job 17")
    launcher.start(4)
    passed = (tmp_path / "env").read_text().splitlines()
    for line in ("SLURM_CONF=/etc/slurm.conf", "MY_DATA=/data", "WORLD_SIZE=4", "SLURM_WAIT=0"):
        assert line in passed
    assert not [line for line in passed if line.startswith(("SLURM_PROCID", "RANK"))]


def test_words_of_slurm_are_passed_on(launcher, tmp_path, monkeypatch):
    """
    Slurm's own error text is passed on, because a cluster has rules that the course cannot know.
    """
    fake(monkeypatch, tmp_path, "sbatch", "echo sbatch: error: not before noon >&2; exit 1")
    with pytest.raises(LauncherError, match="these words of sbatch: sbatch: error: not before"):
        launcher.start(4)
    launcher.submit_command = ["no-sbatch"]
    with pytest.raises(LauncherError, match="no no-sbatch on this machine"):
        launcher.start(4)


def test_queue_that_is_silent_is_told_from_a_job_that_is_gone(launcher, tmp_path, monkeypatch):
    """
    A queue that does not answer differs from a job that has ended: Slurm's controller may be away
    for a minute while the ranks run on.
    """
    launcher.job_id = "17"
    fake(monkeypatch, tmp_path, "squeue", "echo 'PENDING|Priority'")
    assert launcher.ask_queue() == SlurmJob("17", "PENDING", "Priority")
    gone = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    fake(monkeypatch, tmp_path, "squeue", gone)
    assert launcher.ask_queue() == SlurmJob("17", "")
    fake(monkeypatch, tmp_path, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert launcher.ask_queue() is None


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "link_cut"])
def test_supervisor_runs_what_ends_a_job(tmp_path, is_killed):
    """
    The supervisor runs the command that ends a job, also if the kernel is gone, and if one command
    does not exist.
    """
    supervisor = SupervisorClient()
    done, other = tmp_path / "done", tmp_path / "other"
    supervisor.run_at_end([["touch", str(other)]])
    supervisor.run_at_end([["no-such-command"], ["touch", str(done)]])
    if is_killed:
        supervisor._link.close()  # as when the kernel's process ends
        wait_until(lambda: supervisor.gone, HANGS_AFTER_S, "the supervisor's end")
    supervisor.stop()
    assert done.exists()
    assert not other.exists()


def test_rank_is_read_from_what_its_launcher_names(monkeypatch):
    """
    A rank's number is read from the variable that its launcher names. A kernel in a Slurm job
    passes its own variables, with its own number, to all ranks.
    """
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    for named, rank in (("SLURM_PROCID", 0), ("PMI_RANK OMPI_COMM_WORLD_RANK", 2), ("", None)):
        monkeypatch.setenv("DDP_LESSONS_RANK_FROM", named)
        assert RankEngine().id == rank


def test_home_of_a_rank_in_a_job_is_its_node(monkeypatch, tmp_path):
    """
    The host of a rank in a Slurm job is its node's name, as squeue and scontrol show it.
    """
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    assert host_info(str(tmp_path)).host == "n7"
    monkeypatch.setenv("LOCAL_RANK", "9")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    count_by_host(1, 2)
    assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("1", "2")


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        (f"{EXITED_BY_SRUN}\n", {2: EXITED_BY_SRUN}),
        (
            f"{KILLED_BY_SRUN}\nsrun: error: n2: task 12: Aborted\n",
            {**dict.fromkeys((0, 1, 3), KILLED_BY_SRUN), 12: "srun: error: n2: task 12: Aborted"},
        ),
        ("srun: error: Unable to create step\nImportError: srun: error: n1: task 2: no\n", {}),
        ("", {}),
    ],
)
def test_engines_that_ended_are_read_from_what_srun_says(launcher, monkeypatch, said, ended):
    """
    Dead engines are found in srun's output, because Slurm counts the job as running while one
    engine lives.
    """
    monkeypatch.setattr(launcher, "get_output", lambda: said)
    assert launcher.ended_tasks() == ended


@pytest.mark.parametrize("num_later", [0, 3, 50])
def test_why_an_engine_ended_is_told_however_much_others_said_since(num_later):
    """
    The cause of an engine's end is shown, however much the others printed since: all write into one
    file, of which only the last lines are shown.
    """
    said = [EXITED_BY_SRUN, *(f"engine 1: line {number}" for number in range(num_later))]
    engines = SlurmRankProcesses.__new__(SlurmRankProcesses)
    engines._engine_set = SimpleNamespace(
        ask_queue=lambda: SlurmJob("7", "RUNNING"), get_output=lambda: "\n".join(said)
    )
    engines._launcher_name, engines._steps = "slurm", {}
    engines._early = {2: EXITED_BY_SRUN}
    told = engines._log_tail([2])
    assert told.startswith("\n  slurm: job 7 is RUNNING\n  slurm: ")
    assert told.count(EXITED_BY_SRUN) == 1
    assert told.endswith(f"{said[-1]}\n")
    assert engines._log_tail([1]).count(EXITED_BY_SRUN) == (num_later < 5)
