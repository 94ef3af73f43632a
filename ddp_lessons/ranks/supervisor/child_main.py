"""
The code of the supervisor's children from their first instruction on: a controller or a rank.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import io
import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ddp_lessons.ranks.messages.stack_files import STACK_SIGNAL, stack_file
from ddp_lessons.ranks.supervisor.controller_options import hold_ports, needs_ports, ports_argument
from ddp_lessons.ranks.system import processes as system
from ddp_lessons.ranks.system.runtime_folder import open_private

_NEEDED = (  # modules that the engine's kernel and shell, the join, and NumPy's seed need
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "ddp_lessons.process_group",
    "ddp_lessons.ranks.rank.rank_engine",
    "ddp_lessons.ranks.rank.group_membership",
    "ipyparallel.engine.app",
    "numpy.random",
    "sqlite3",
    "tornado.platform.asyncio",
)
RANK_OPTIONS = ["-P", "-m", "ddp_lessons.ranks.rank.rank_engine"]
"""
The options after Python's name in the command line by which ipyparallel's launchers start a rank.
"""


def prepare_to_fork() -> None:
    """
    Set the environment variables that a process needs before it imports torch and forks ranks.
    """
    # Threads of OpenBLAS would forbid forking; ranks divide the cores among themselves anyway.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Have torch ask the driver for the number of GPUs. The default way initialises CUDA, and a
    # forked process cannot use a CUDA that its parent has initialised.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Keep the flight recorder small: each dump reads all of it, and only the last calls are needed.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "64")


def import_for_forks() -> None:
    """
    Import torch and all that ranks need, so that forked processes share the memory of the modules.
    """
    gc.disable()  # objects made by imports stay; collecting would inspect them for nothing
    importlib.import_module("torch.distributed")
    import_what_ranks_need()
    gc.freeze()  # pages that the collector leaves alone stay shared among ranks
    gc.enable()


def fork_child(
    log: str | Path,
    work: Callable[..., object],
    *args: object,
    dies_with_parent: bool = True,
) -> int:
    """
    Fork a child that runs `work(*args)` with its output in a log file.

    Args:
        log: Path of the log file, to which the output is appended.
        work, args: Function that the child runs, with its arguments. Then the child ends.
        dies_with_parent: Whether the end of this process ends the child.

    Returns:
        int: The child's process id.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if dies_with_parent:
            system.die_with_parent(parent_pid)
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_DFL)
        output = open_private(log)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        work(*args)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def reap() -> list[tuple[int, int]]:
    """
    Collect ended children. Return a list of (process id, exit code or minus the signal).
    """
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def run_controller(argv: Sequence[str]) -> None:
    """
    Run ipyparallel's controller in this process.
    """
    os.umask(0o077)  # the controller writes a file of the engines' ids, which must be private
    # A kill -9 of the controller would leave its helper processes. The hook makes them end with it.
    os.register_at_fork(after_in_child=_die_with_controller)
    from ipyparallel.controller import app

    from ddp_lessons.ranks.supervisor.controller_app import RanksController
    from ddp_lessons.ranks.supervisor.heartbeat import run_heart_monitor

    app.start_heartmonitor = run_heart_monitor
    if needs_ports(argv):
        held = hold_ports()  # until this process ends
        argv = [*argv, ports_argument(held)]
    RanksController.launch_instance(argv=argv)


def _die_with_controller():
    system.die_with_parent(os.getppid())


def import_what_ranks_need() -> None:
    """
    Import the modules that a rank needs up to its first cell, so that they are loaded only once.
    """
    # An engine's kernel would load a debugger to which nothing can attach, as ipyparallel has no
    # channel for it. Without debugpy a rank starts in half the time. A learner can still import it.
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    importlib.import_module("ipykernel.debugger")
    del sys.modules["debugpy"]
    for name in _NEEDED:
        importlib.import_module(name)


def run_rank(
    rank: int,
    environment: Mapping[str, str],
    num_threads: int,
    connection_file: str,
    profile_dir: str,
    folder: str | os.PathLike[str],
) -> None:
    """
    Run a rank in this process: torch may be imported already, but CUDA must not be initialised.

    Args:
        rank: The rank.
        environment: Environment variables to set, by name.
        num_threads: CPU threads that torch may use.
        connection_file: ipyparallel's `ipcontroller-...-engine.json`.
        profile_dir: IPython profile folder.
        folder: The runtime folder.
    """
    # Start a session, as torchrun does. Linux gives each session a share of the cores, and ranks in
    # one session wake each other late. A training step of a model with 4,810 parameters took 1.5 ms
    # in one session for all ranks, and 1.2 ms in a session for each rank.
    os.setsid()
    os.environ.update(environment)
    new_file = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC  # drop a dead process's stacks
    stacks = open_private(stack_file(folder, rank), new_file)
    # Dump only the main thread, which runs the cell and gets the signal. The stacks of threads that
    # run meanwhile cannot be read safely: one signal in 20,000 ended the process.
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    from ddp_lessons.private.lazy_compiler import defer_compiler_import
    from ddp_lessons.ranks.rank.crash_log import write_crash_log
    from ddp_lessons.ranks.rank.rank_engine import run_engine

    write_crash_log(stacks)
    defer_compiler_import()
    _part_from_siblings(rank, num_threads)
    try:
        run_engine(rank, connection_file, profile_dir)
    finally:
        _save_what_is_open()


def run_launched_rank(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """
    Run a rank as `python -m ddp_lessons.ranks.rank.rank_engine` would, with torch imported.

    Args:
        arguments: Arguments of that command, a list of words.
        environment: All environment variables of the rank, by name.
    """
    os.setsid()  # else the end of the SSH login would end the rank
    os.environ.clear()
    os.environ.update(environment)
    from ddp_lessons.ranks.rank.rank_engine import RankEngine

    _part_from_siblings(environment["RANK"], int(environment["OMP_NUM_THREADS"]))
    sys.argv = ["ddp-lessons-rank", *arguments]
    try:
        RankEngine.launch_instance()
    finally:
        _save_what_is_open()


def _part_from_siblings(rank, num_threads):
    import numpy
    import torch

    system.name_process(f"rank {rank}")
    # A forked child inherits NumPy's random state, and two ranks must not draw the same numbers by
    # accident. Python's generator reseeds itself after a fork. torch starts each process with the
    # same default seed, forked or not, so we leave it.
    numpy.random.seed(random.getrandbits(32))  # noqa: NPY002 - it is this state that is shared
    torch.set_num_threads(num_threads)


def _save_what_is_open():
    """
    Run atexit's functions and flush open files at a rank's end, as Python does at a process's end.

    Unlike Python, destroy no objects: process groups would wait for their peers.
    """
    atexit._run_exitfuncs()
    for one in gc.get_objects():  # only objects made after the fork (see `import_for_forks`)
        if isinstance(one, (io.TextIOWrapper, io.BufferedWriter)):
            with contextlib.suppress(OSError, ValueError):  # a full disk, or a closed descriptor
                one.flush()


def spawn_rank(
    rank: int,
    environment: Mapping[str, str],
    num_threads: int,
    connection_file: str,
    profile_dir: str,
    folder: str | os.PathLike[str],
) -> int:
    """
    Start a rank as a fresh interpreter, where forking is not safe (arguments: see `run_rank`).

    Returns:
        int: The child's process id.
    """
    command = [
        sys.executable, "-P", "-m", "ddp_lessons.ranks.supervisor.child_main", str(rank),
        str(num_threads), str(connection_file), str(profile_dir), str(folder), str(os.getpid()),
    ]  # fmt: skip
    with os.fdopen(open_private(Path(folder) / f"rank-{rank}.log"), "ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
    return child.pid


def _main(argv):
    rank, num_threads, connection_file, profile_dir, folder, parent_pid = argv
    system.die_with_parent(int(parent_pid))
    import_what_ranks_need()
    run_rank(int(rank), {}, int(num_threads), connection_file, profile_dir, folder)


if __name__ == "__main__":
    _main(sys.argv[1:])
