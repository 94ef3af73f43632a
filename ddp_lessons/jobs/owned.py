"""
Run one command and let nothing that it started outlive it.

This file runs as a process of its own between a caller and the command. It takes in every process
that the command leaves behind, also those that detached themselves, and ends them all when the
command has ended, when its time is over, or when the caller is gone, however the caller went:
the caller holds the other end of this process's standard input, and the kernel closes it.

It imports nothing of this package, so that it starts fast and works from any folder.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import uuid

import psutil

TYPE_CHECKING = False  # as in typing, which takes 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import IO

DEADLINE_STATUS = 124  # as timeout(1) has it
GONE_STATUS = 125
SETTLE_S = 5.0  # for processes that end by themselves when their kernel is gone

_PR_SET_CHILD_SUBREAPER = 36
_TOKEN = "DDP_LESSONS_OWNER"  # carried by every process that the command starts
_LAST_WORDS_S = 5.0  # for the command to report after its time is over
_TERMINATE_S = 1.0


def run_owned(
    command: Sequence[str],
    *,
    cwd: Path | str,
    env: Mapping[str, str] | None,
    deadline_s: float,
    output: IO[bytes] | IO[str] | None = None,
) -> int:
    """
    Run a command, wait for it, and end every process that it started.

    Args:
        command: The program and its arguments.
        cwd: Folder to run it in.
        env: Its environment. IPYTHONDIR is set to a new folder, removed in the end.
        deadline_s: Seconds after which it is interrupted and ended.
        output: An open file for all that is printed. None leaves it on the caller's streams.

    Returns:
        The command's exit status, minus the signal that ended it, or DEADLINE_STATUS.
    """
    owner = subprocess.Popen(
        owner_command(command, deadline_s=deadline_s, settle_s=SETTLE_S),
        cwd=cwd,
        env=env,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches the caller alone, which decides
    )
    try:
        return owner.wait()
    finally:
        owner.communicate()  # closes its input, which ends it, and waits


def owner_command(
    command: Sequence[str], *, deadline_s: float, settle_s: float, has_scratch: bool = False
) -> list[str]:
    """
    Return the command of a process that runs a command and owns all that comes of it.

    It ends everything when its standard input is closed, and ends in the same way as the command.

    Args:
        command: The program and its arguments.
        deadline_s: Seconds after which the command is interrupted and ended.
        settle_s: Seconds that processes get which the command leaves behind.
        has_scratch: Set TMPDIR to a new folder that nobody else can read, removed in the end.
    """
    # -P: the folder of this file must not hide modules from that process.
    limits = [f"--deadline-s={deadline_s}", f"--settle-s={settle_s}"]
    limits += ["--scratch"] if has_scratch else []
    return [sys.executable, "-P", __file__, *limits, "--", *command]


def _main():
    parser = argparse.ArgumentParser(description="Run a command and let nothing outlive it.")
    parser.add_argument("--deadline-s", type=float, required=True)
    parser.add_argument("--settle-s", type=float, required=True)
    parser.add_argument("--scratch", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    # In a folder of its own, because a profile of the user's could change what cells print.
    with tempfile.TemporaryDirectory(prefix="ddp-lessons-", ignore_cleanup_errors=True) as folder:
        if options.scratch:
            os.environ["TMPDIR"] = folder
        return _Owner(folder, options.settle_s).run(options.command, options.deadline_s)


class _Owner:
    def __init__(self, folder, settle_s):
        self.settle_s = settle_s
        self.env = os.environ | {"IPYTHONDIR": folder, _TOKEN: uuid.uuid4().hex}
        self.is_subreaper = _become_subreaper()
        # (event, status); its put is safe in a signal handler
        self.events: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()

    def run(self, command, deadline_s):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.events.put(("gone", GONE_STATUS)))
        child = subprocess.Popen(
            command, env=self.env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        reaper = threading.Thread(target=self._reap, args=[child], daemon=True)
        reaper.start()
        threading.Thread(target=self._watch_caller, daemon=True).start()
        event, status = self._next_event(deadline_s)
        if event == "ended":
            self._let_settle()
        elif event == "deadline":
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGINT)
            self._next_event(_LAST_WORDS_S)
        self._end_all()
        while reaper.is_alive():  # or whoever looks after our end would still see a zombie
            reaper.join(_TERMINATE_S)
            self._end_all()
        return status

    def _next_event(self, timeout_s):
        try:
            return self.events.get(timeout=timeout_s)
        except queue.Empty:
            return "deadline", DEADLINE_STATUS

    def _reap(self, child):
        # All children, adopted ones too: a zombie looks alive to whoever waits for its end.
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return
            if pid == child.pid:
                child.returncode = os.waitstatus_to_exitcode(status)
                self.events.put(("ended", child.returncode))

    def _watch_caller(self):
        os.read(sys.stdin.fileno(), 1)  # returns when the other end is closed
        self.events.put(("gone", GONE_STATUS))

    def _let_settle(self):
        psutil.wait_procs(self._left(), timeout=self.settle_s)
        names = sorted(_name(process) for process in self._left())
        if names:
            print(f"left behind, ended now: {', '.join(names)}", file=sys.stderr, flush=True)

    def _end_all(self):
        for process in self._left():
            _send(process, signal.SIGTERM)
        psutil.wait_procs(self._left(), timeout=_TERMINATE_S)
        while left := self._left():
            for process in left:
                _send(process, signal.SIGKILL)
            psutil.wait_procs(left, timeout=_TERMINATE_S)

    def _left(self):
        if self.is_subreaper:
            found = psutil.Process().children(recursive=True)
        else:
            found = _bearers(self.env[_TOKEN])
        return [process for process in found if _is_running(process)]


def _become_subreaper():
    # Linux only. Elsewhere a detached process is found by the token in its environment.
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _bearers(token):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_TOKEN) == token:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # another user's, or already gone
    return found


def _is_running(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _name(process):
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "one that ended by itself"


def _send(process, number):
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
        process.send_signal(number)


def _end_as(status):
    # A signal that ended the command ends this process as well: an exit code could mean both.
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        sys.stdout.flush()
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    _end_as(_main())
