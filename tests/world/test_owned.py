"""
Every process that a command started ends with it, however the command and its caller end.

Each test starts a process that detaches itself and holds one end of a named pipe open. The other
end reads the end of the file when that process is gone, and only then.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import GROWING_S, HANGS_AFTER_S
from witness import Witness

from ddp_lessons.jobs import owned
from ddp_lessons.jobs.owned import DEADLINE_STATUS, run_owned


@pytest.fixture
def witness(tmp_path):
    witness = Witness(tmp_path / "pipe")
    yield witness
    os.close(witness.pipe)


def run(command, folder, deadline_s=HANGS_AFTER_S):
    return run_owned(["sh", "-c", command], cwd=folder, env=os.environ, deadline_s=deadline_s)


def test_run_owned_passes_the_status_on(tmp_path):
    """
    The caller gets the command's exit status.
    """
    assert run("exit 0", tmp_path) == 0
    assert run("exit 7", tmp_path) == 7


def test_run_owned_gives_a_private_ipython_folder(tmp_path):
    """
    IPython has a private folder, so that a user's profile does not change what cells print. The
    folder is removed.
    """
    assert run("test -d $IPYTHONDIR && echo $IPYTHONDIR > dir", tmp_path) == 0
    assert not Path((tmp_path / "dir").read_text().strip()).exists()


def test_run_owned_ends_what_was_left_behind(tmp_path, witness, monkeypatch, capfd):
    """
    A process that has left its session and its parent is found, ended and named.
    """
    monkeypatch.setattr(owned, "SETTLE_S", 0.1)
    is_there = "[ $(ps -o comm= -p $!) = sleep ]"
    command = f"{witness.detach[1:-1]} until {is_there}; do :; done; exit 3"
    assert run(command, tmp_path) == 3
    witness.wait_for_start()
    witness.wait_for_end()
    assert capfd.readouterr().err == "left behind, ended now: sleep\n"


def test_run_owned_ends_at_the_deadline(tmp_path, witness):
    """
    At the deadline the command gets Ctrl-C and some seconds to write its last output. Then the
    command and its processes are ended.
    """
    script = f"trap 'echo words > last; exit 5' INT; {witness.detach}; sleep 600 & wait"
    for deadline_s in GROWING_S:
        assert run(script, tmp_path, deadline_s=deadline_s) == DEADLINE_STATUS
        if witness.has_started():
            break
    witness.wait_for_end()
    assert (tmp_path / "last").read_text() == "words\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_owned_ends_with_its_caller(tmp_path, witness, number):
    """
    After Ctrl-C, a timeout's SIGTERM and kill -9 of the caller no process is left.
    """
    script = (
        "import os, sys; from ddp_lessons.jobs.owned import run_owned; "
        "run_owned(['sh', '-c', sys.argv[1]], cwd='.', env=os.environ, deadline_s=600)"
    )
    command = witness.detach + "; sleep 600"
    with subprocess.Popen([sys.executable, "-c", script, command], stderr=subprocess.DEVNULL) as it:
        witness.wait_for_start()
        family = psutil.Process(it.pid).children(recursive=True)
        it.send_signal(number)
        it.wait(HANGS_AFTER_S)
    witness.wait_for_end()
    _, alive = psutil.wait_procs(family)
    assert alive == []


def test_run_owned_reaps_at_once(tmp_path):
    """
    A dead child is reaped at once, because a lesson that waits for a detached process to vanish
    must not wait for a zombie.
    """
    vanish = "until ! kill -0 $(cat pid) 2>/dev/null; do :; done"
    script = "(setsid sh -c 'echo $$ > pid; echo > ready' &); until test -f ready; do :; done"
    assert run(f"{script}; {vanish}", tmp_path, deadline_s=HANGS_AFTER_S) == 0


def test_bearers_finds_detached_processes_by_their_token(tmp_path, witness):
    """
    On a system without subreapers, such as macOS, detached processes are found by an environment
    variable that they inherit.
    """
    environment = os.environ | {owned._TOKEN: "of this test"}
    subprocess.run(["sh", "-c", witness.detach], env=environment, check=True)
    witness.wait_for_start()
    for process in owned._bearers("of this test"):
        process.kill()
    witness.wait_for_end()
