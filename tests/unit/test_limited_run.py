"""
The resources that a submission may use, and the end of all its processes.
"""

import os
import sys
import time

import psutil
import pytest
from waiting import HANGS_AFTER_S, comes_true

from ddp_lessons.course.learner import limited_run
from ddp_lessons.course.learner.limited_run import Limits


@pytest.fixture
def mark():
    """
    Return a word that every command line of the test contains.
    """
    return f"sandbox-test-{os.getpid()}-{time.monotonic_ns()}"


def left(mark):
    """
    Return the processes of a test that still run.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # it has ended
    return found


def run(tmp_path, mark, source, is_over=lambda: False, env=None, **limits):
    """
    Run Python source within limits. Return its exit status, the limit that it exceeded or "", and
    its output.
    """
    command = [sys.executable, "-c", source, mark]
    output = tmp_path / "said"
    told = {"cwd": tmp_path, "env": env or dict(os.environ), "output": output}
    status, fault = limited_run.run(command, limits=Limits(**limits), is_over=is_over, **told)
    assert comes_true(lambda: not left(mark), HANGS_AFTER_S), left(mark)
    return status, fault, output.read_text()


def test_what_keeps_to_its_limits_runs_as_ever(tmp_path, mark):
    """
    A program within its limits runs normally, and its exit status is returned.
    """
    assert run(tmp_path, mark, "print('hello')") == (0, "", "hello\n")
    assert run(tmp_path, mark, "raise SystemExit(3)")[:2] == (3, "")


def test_what_does_not_end_is_ended(tmp_path, mark):
    """
    A program that does not end is ended after its time limit, because it would keep other
    submissions waiting.
    """
    assert run(tmp_path, mark, "while True: pass", time_s=1.0)[1] == "time"


def test_one_process_gets_no_more_memory_than_all_may_have(tmp_path, mark):
    """
    One process gets at most the memory limit. Beyond it Python raises MemoryError, as on a full
    machine.
    """
    source = "x = bytearray(600 * 2**20)"
    status, fault, said = run(tmp_path, mark, source, memory_mib=400)
    assert (status, fault) == (1, "")
    assert "MemoryError" in said


def test_processes_get_no_more_memory_together(tmp_path, mark):
    """
    All processes together get at most the memory limit, because four ranks within it may exceed it
    together.
    """
    source = (
        "import subprocess, sys, time\n"
        "hold = 'x = bytearray(b\"1\") * (150 * 2**20); import time; time.sleep(600)'\n"
        "for _ in range(4): subprocess.Popen([sys.executable, '-c', hold, sys.argv[1]])\n"
        "time.sleep(600)\n"
    )
    assert run(tmp_path, mark, source, memory_mib=400)[1] == "memory"


def test_processes_are_counted(tmp_path, mark):
    """
    The processes of a submission are counted, including those that have detached themselves.
    """
    source = (
        "import subprocess, sys, time\n"
        "for _ in range(20):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)',\n"
        "                      sys.argv[1]], start_new_session=True)\n"
        "time.sleep(600)\n"
    )
    assert run(tmp_path, mark, source, processes=10)[1] == "processes"


def test_what_is_left_behind_is_ended(tmp_path, mark):
    """
    Processes that a submission leaves behind are ended, so that the next one finds the machine
    unchanged.
    """
    source = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]],\n"
        "                 start_new_session=True)\n"
    )
    assert run(tmp_path, mark, source)[:2] == (0, "")


def test_it_is_ended_when_the_teacher_has_seen_enough(tmp_path, mark):
    """
    The run ends when `is_over` returns true, as after the teacher's Ctrl-C.
    """
    status, fault, _ = run(tmp_path, mark, "import time; time.sleep(600)", lambda: left(mark))
    assert (status, fault) != (0, "")


def test_what_is_printed_is_bounded_and_its_end_can_be_read(tmp_path, mark):
    """
    The size of the output is limited, because an endless print would fill the disk. Its end can be
    read.
    """
    source = "import sys\nwhile True: sys.stdout.write('x' * 2**20)"
    command = [sys.executable, "-c", source, mark]
    output, limits = tmp_path / "said", Limits(memory_mib=300)
    told = {"cwd": tmp_path, "env": dict(os.environ), "output": output}
    status, _ = limited_run.run(command, limits=limits, **told)
    assert status != 0
    assert output.stat().st_size <= 300 * 2**20
    assert len(limited_run.last_words(output, most_bytes=1000)) == 1000
    output.unlink()


def test_it_is_told_no_secrets(tmp_path, mark):
    """
    A submission sees no secrets: a CI job or a hub has tokens in its environment that a learner's
    code must not read.
    """
    names = (
        "GITHUB_TOKEN",
        "JUPYTERHUB_API_TOKEN",
        "MY_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "DDP_LESSONS_BOARD_URL",
    )
    env = {**os.environ, **dict.fromkeys(names, "secret"), "KEPT": "kept"}
    source = "import os; print(sorted(k for k, v in os.environ.items() if v in ('secret', 'kept')))"
    assert run(tmp_path, mark, source, env=env)[2] == "['KEPT']\n"
