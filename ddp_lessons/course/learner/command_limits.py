"""
A process that runs a command, and kills it if its processes use too much memory or are too many.

This file runs as a process between `ddp_lessons.jobs.owned` and the command. The operating system
enforces the limits of each single process. Ten times a second, this process counts all of them and
adds up their memory. The file imports nothing of this package, so that it works from any folder.
"""

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time

import psutil

OVER_STATUS = 122
_LOOK_EVERY_S = 0.1
_TASKS_A_PROCESS = 32  # threads of a process: RLIMIT_NPROC counts them, too


def _main():
    parser = argparse.ArgumentParser(description="Hold a command to memory and processes.")
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--told", required=True, help="file for what was too much")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    _bound(resource.RLIMIT_DATA, options.memory_bytes)
    _bound(resource.RLIMIT_NPROC, _num_tasks() + _TASKS_A_PROCESS * options.processes)
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_FSIZE, options.memory_bytes)  # the memory limit bounds a file, too
    with subprocess.Popen(options.command) as child:
        while child.poll() is None:
            fault = _fault(options.memory_bytes, options.processes)
            if fault:
                with open(options.told, "w", encoding="utf-8") as file:
                    file.write(fault)
                _kill_all()
                return OVER_STATUS
            time.sleep(_LOOK_EVERY_S)
        return child.returncode


def _bound(what, most):
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def _num_tasks():
    # RLIMIT_NPROC bounds all threads of the user, not only this command's. It does not bind root.
    own, found = os.getuid(), 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == own:
                found += process.num_threads()
    return found


def _others():
    # Detached processes are included: the owner, which is our parent, has adopted them.
    mine = os.getpid()
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(os.getppid()).children(recursive=True)
        return [one for one in found if one.pid != mine]
    return []


def _fault(memory_bytes, num_processes):
    others = _others()
    if len(others) > num_processes:
        return "processes"
    # RSS counts shared memory once for each process, so its sum is an upper bound.
    if _sum(others, lambda one: one.memory_info().rss) <= memory_bytes:
        return ""
    return "memory" if _sum(others, _own_bytes) > memory_bytes else ""


def _own_bytes(process):
    # PSS, on Linux only, divides shared memory among its processes. USS is the private memory.
    told = process.memory_full_info()
    return getattr(told, "pss", told.uss)


def _sum(processes, size):
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += size(process)
    return total


def _kill_all():
    # Stop all processes first, so that none starts another one while the rest is being killed.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        while left := [one for one in _others() if _is_left(one, number)]:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            psutil.wait_procs(left, timeout=_LOOK_EVERY_S)


def _is_left(process, number):
    gone = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    if number == signal.SIGSTOP:
        gone |= {psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP}
    try:
        return process.status() not in gone
    except psutil.Error:
        return False


if __name__ == "__main__":
    status = _main()
    sys.exit(status if status >= 0 else 128 - status)
