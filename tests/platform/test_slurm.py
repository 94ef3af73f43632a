"""
The throw-away Slurm: it runs jobs, and when it is stopped there was never one.
"""

import os
import subprocess
from pathlib import Path

from throw_away_slurm import needs_slurm, processes_of, slurm


def test_slurm_says_what_is_missing(tmp_path):
    """
    Most machines have none.
    """
    empty = tmp_path / "bin"
    empty.mkdir()
    done = slurm("start", folder=tmp_path / "slurm", path=str(empty))
    assert done.returncode == 1
    assert "slurm.sh: no " in done.stderr
    assert not (tmp_path / "slurm").exists()
    assert "expected start or stop (got '')" in slurm(folder=tmp_path / "slurm").stderr
    assert slurm("stop", folder=tmp_path / "slurm").returncode == 0


def test_slurm_ends_no_process_that_has_the_number_of_an_old_one(tmp_path):
    """
    The folder of one that died with its machine may lie there for months.
    """
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "slurm").mkdir()
        (tmp_path / "slurm" / "slurmctld.pid").write_text(f"{other.pid}\n")
        assert slurm("stop", folder=tmp_path / "slurm").returncode == 0
        assert other.poll() is None
        other.kill()
    assert not (tmp_path / "slurm").exists()


@needs_slurm
def test_slurm_starts_runs_jobs_and_leaves_nothing():
    """
    A second start is refused, a job that runs is ended with it, and nothing is left.
    """
    folder = Path("/tmp") / f"ddp-lessons-slurm-test-{os.getpid()}"  # a socket's path is short
    try:
        done = slurm("start", folder=folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"export SLURM_CONF={folder}/slurm.conf\n"
        assert "one runs, or was not stopped" in slurm("start", folder=folder).stderr
        environ = {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf"}
        said = subprocess.run(
            ["srun", "-N", "2", "--ntasks-per-node=1", "printenv", "SLURMD_NODENAME"],
            capture_output=True, text=True, check=True, env=environ, timeout=60,
        )  # fmt: skip
        assert sorted(said.stdout.split()) == ["n1", "n2"]
        command = ["sbatch", "--output=/dev/null", "--wrap", "exec sleep 600"]
        subprocess.run(command, check=True, capture_output=True, env=environ, timeout=60)
        assert processes_of(folder)
    finally:
        stopped = slurm("stop", folder=folder)
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (0, "", "")
    assert not folder.exists()
    assert processes_of(folder) == []
