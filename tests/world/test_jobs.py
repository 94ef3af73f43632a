"""
A job that a cell starts: its output, its workers, and its complete end.
"""

import gc
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import GROWING_S, HANGS_AFTER_S, wait_until

from ddp_lessons.errors import BadInput, JobLate
from ddp_lessons.jobs import run_job, start_job


def test_run_job_gives_output_and_exit_code(tmp_path):
    """
    A cell shows what a terminal would show.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(os.getcwd(), os.environ['COLOUR'], 'HOME' in os.environ)\n"
        "print('bad', file=sys.stderr)\nsys.exit(3)\n"
    )
    job = run_job("python script.py", folder=tmp_path, env={"COLOUR": "blue 1", "HOME": None})
    assert job.stdout == f"{tmp_path} blue 1 False\n"
    assert job.stderr == "bad\n"
    assert job.returncode == 3
    assert repr(job) == "<job python script.py: exit code 3>"


def test_run_job_takes_a_list_with_spaces_in_it():
    """
    An argument with spaces needs no quotes in a list.
    """
    job = run_job([sys.executable, "-c", "import sys; print(sys.argv[1:])", "a b", 7])
    assert job.stdout == "['a b', '7']\n"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_run_job_tells_signals_from_exit_codes(signum):
    """
    A signal gives a negative exit code, and exit code 247 is not taken for signal 9.
    """
    assert (
        run_job(["python", "-c", f"import os; os.kill(os.getpid(), {int(signum)})"]).returncode
        == -signum
    )
    assert (
        run_job(["python", "-c", f"import sys; sys.exit({256 - signum})"]).returncode
        == 256 - signum
    )


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (
            "mpiexek -n 2 python",
            "No such command: expected one that this machine has (got 'mpiexek')",
        ),
        ("./missing.sh", "No such command"),
        ("", "No command: expected words"),
    ],
)
def test_start_job_refuses_what_is_not_there(command, fault, tmp_path):
    """
    The message names the command that was not found.
    """
    with pytest.raises(BadInput, match=re.escape(fault)):
        start_job(command, folder=tmp_path)


def test_run_job_that_is_late_shows_its_last_lines():
    """
    A job that exceeds its time shows its last lines, so that the user sees what it was waiting for.
    """
    for limit_s in GROWING_S:
        with pytest.raises(JobLate, match=rf"expected an end within {limit_s:g} s") as late:
            run_job(["sh", "-c", "seq 0 98; sleep 600"], timeout_s=limit_s)
        if str(late.value).endswith("98"):
            break
    assert str(late.value).endswith("\n  97\n  98")


TREE = "import subprocess, time; subprocess.Popen(['setsid', 'sleep', '600']); time.sleep(600)"


def started(job, num):
    """
    Wait until the job has this number of processes, and return them.
    """
    wait_until(lambda: len(job.processes()) == num, HANGS_AFTER_S, f"{num} processes")
    return job.processes()


def test_job_ends_with_its_block():
    """
    The job's processes end with the block, also one that has left its parent and its session.
    """
    with start_job(["python", "-c", TREE]) as job:
        processes = started(job, 2)
        assert job.returncode is None
        assert job.is_running
        assert job.wait(0.1) is None
    assert not any(process.is_running() for process in processes)
    assert (job.returncode, job.is_running, job.processes()) == (None, False, [])
    assert repr(job).endswith("ended by us>")


ADOPTER = """
import ctypes, os, sys, psutil
from ddp_lessons.jobs import start_job
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # a subreaper: what is left without a parent comes here
with start_job(["python", "-c", sys.argv[1]], env={"PYTHONPATH": sys.argv[2]}) as job:
    while len(job.processes()) < 2:
        pass
print(psutil.Process().children())
"""
STARVED = """
import os, time
kill, wait = os.kill, os.waitpid
def kill_and_rest(*args):
    kill(*args)
    time.sleep(0.2)
def wait_late(*args):
    time.sleep(1.0)
    return wait(*args)
os.kill, os.waitpid = kill_and_rest, wait_late
"""


def test_job_that_has_ended_leaves_no_zombie(tmp_path):
    """
    A finished job leaves no zombie. A zombie counts as running, and the thread that reaps may get
    no core for a while.
    """
    (tmp_path / "sitecustomize.py").write_text(STARVED)
    job = run_job([sys.executable, "-c", ADOPTER, TREE, tmp_path])
    assert (job.stdout, job.stderr) == ("[]\n", "")


def test_job_ends_when_nobody_holds_it():
    """
    A job ends when its object is deleted, because running a cell again replaces the first job.
    """
    job = start_job(["python", "-c", TREE])
    processes = started(job, 2)
    del job
    gc.collect()
    assert not any(process.is_running() for process in processes)


def test_output_of_a_job_has_no_name_on_the_disk(tmp_path, monkeypatch):
    """
    The output can be read after the end, but has no file name, so that a killed kernel leaves no
    file.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job = run_job(["python", "-c", "print(1)"])
    assert (job.stdout, job.stderr) == ("1\n", "")
    assert list(tmp_path.iterdir()) == []


def test_job_ends_with_its_kernel(tmp_path):
    """
    A job ends with its kernel, although a killed kernel cannot end it.
    """
    holder = (
        "import os, time\nfrom ddp_lessons.jobs import start_job\n"
        f"job = start_job(['python', '-c', {TREE!r}])\n"
        "while len(job.processes()) < 2: time.sleep(0.05)\n"
        "print(*[p.pid for p in job.processes()], flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", holder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernel:
        pids = [int(word) for word in kernel.stdout.readline().split()]
        kernel.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), HANGS_AFTER_S, "their end")


def test_job_knows_its_workers(tmp_path):
    """
    `workers` gives the process of each rank, for a debugger, and no DataLoader worker with the same
    environment.
    """
    script = tmp_path / "worker.py"
    script.write_text("import subprocess, os\nsubprocess.run(['sleep', '600'])\n")
    with start_job(
        "torchrun --nproc-per-node 2 --monitor-interval 0.1 worker.py", folder=tmp_path
    ) as job:
        wait_until(lambda: len(job.workers()) == 2, HANGS_AFTER_S, "two workers")
        workers = job.workers()
        assert sorted(workers) == [0, 1]
        for rank, pid in workers.items():
            process = psutil.Process(pid)
            assert process.environ()["RANK"] == str(rank)
            assert "worker.py" in process.cmdline()[-1]
        os.kill(workers[1], signal.SIGKILL)
        assert job.wait(HANGS_AFTER_S) == 1
    assert "exitcode  : -9" in job.stderr


def test_job_can_be_waited_for_by_what_it_says():
    """
    A job that hangs never ends, so a cell can wait for a line of its output instead.
    """
    code = "import time; [print('step', n, flush=True) for n in range(3)]; time.sleep(600)"
    with start_job(["python", "-c", code]) as job:
        job.wait_for("step", HANGS_AFTER_S, times=3)
        assert job.stdout.splitlines() == ["step 0", "step 1", "step 2"]
        fault = "expected 'step' 4 times within 0.1 s (got it 3 times"
        with pytest.raises(JobLate, match=re.escape(fault)):
            job.wait_for("step", 0.1, times=4)
        assert job.is_running


def test_job_that_ends_is_waited_for_no_longer():
    """
    Waiting for output stops when the job ends, and the error shows its last lines.
    """
    with start_job(["python", "-c", "print('step'); raise ValueError('why')"]) as job:
        job.wait_for("step", HANGS_AFTER_S)
        with pytest.raises(JobLate, match=r"(.*\n)+  ValueError: why$"):
            job.wait_for("done", 24 * 3600)


def test_job_finds_the_commands_of_this_environment_and_no_colours(monkeypatch):
    """
    A job finds the commands of this environment, although a kernel need not have that folder on its
    PATH. It prints no colours, although a kernel asks for them.
    """
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    code = "import os, shutil; print(shutil.which('pytest'), os.environ.get('CLICOLOR_FORCE'))"
    path, colours = run_job(["python", "-c", code]).stdout.split()
    assert path.endswith("/pytest")
    assert colours == "None"
