"""
Tests of the temporary Slurm for tests, `scripts/slurm.sh`: it runs jobs, and leaves nothing.
"""

import os
import subprocess
from pathlib import Path

from throw_away_slurm import needs_slurm, processes_of, slurm


def test_slurm_says_what_is_missing(tmp_path):
    """
    Without Slurm's programs the start names the missing one, and makes no folder.
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
    `stop` does not end a process that by chance has the number in an old folder's pid file.
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
    Slurm starts and runs a job on two nodes, and a second start is refused. `stop` ends running
    jobs and leaves no process and no folder.
    """
    # the paths of sockets must be short
    folder = Path("/tmp") / f"ddp-lessons-slurm-test-{os.getpid()}"
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
