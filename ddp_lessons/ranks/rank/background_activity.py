"""
Threads and child processes that may act while the main thread of a rank waits.

A rank that waits for ever is in a deadlock only if nothing can end its wait. A thread of the
learner's can: it may set the key or send the tensor a minute later. Threads of tools, such as
ipykernel and tqdm, never do.
"""

import os
import sys
import threading
import weakref

import psutil

from ddp_lessons.ranks.system.processes import children_of

THREAD, PROCESS = "thread", "child process"
_TOOLS = (
    "IPython", "_pydev_bundle", "_pydevd_bundle", "ddp_lessons.ranks", "debugpy", "ipykernel",
    "ipyparallel", "joblib", "jupyter_client", "multiprocessing", "pydevd", "tensorboard",
    "torch._inductor", "torch.utils", "torchdata", "tornado", "tqdm", "wandb", "zmq",
)  # fmt: skip
_POOLS = ("concurrent.futures", "multiprocessing.pool", "multiprocessing.dummy")
_POOLS_OWN = (*_POOLS, "multiprocessing", "queue", "selectors")
_START_OF_A_THREAD = ("_bootstrap", "_bootstrap_inner", "run")
_TOOL_PROCESSES = (
    "multiprocessing.resource_tracker", "multiprocessing.forkserver", "loky", "_inductor", "wandb",
    "ipyparallel.engine.nanny",  # ranks of ipyparallel's launchers have one
    "pt_data_worker",  # a DataLoader's worker acts only for a thread that waits for it
)  # fmt: skip


class BackgroundActivity:
    """
    The helpers of this process that are the learner's.

    Threads that exist when this object is made belong to the engine, and are left out.
    """

    def __init__(self) -> None:
        self._spared = weakref.WeakSet(threading.enumerate())

    def that_may_act(self) -> list[str]:
        """
        Return a list of THREAD, if a thread may still act, and PROCESS, if a child process may.
        """
        stacks = sys._current_frames()
        threads = set(threading.enumerate()) - set(self._spared) - {threading.main_thread()}
        found = (
            [THREAD] if any(_may_act(each, stacks.get(each.ident or 0)) for each in threads) else []
        )
        return found + ([PROCESS] if _has_process() else [])


def _belongs_to(module, homes):
    return any(module == home or module.startswith(f"{home}.") for home in homes)


def _may_act(thread, innermost):
    # A dummy stands for a C++ thread, such as autograd's: it acts only for a thread that waits.
    if innermost is None or isinstance(thread, threading._DummyThread):
        return False
    home = type(thread).__module__
    if home in ("threading", "multiprocessing.dummy"):
        home = getattr(getattr(thread, "_target", None), "__module__", None) or home
    if _belongs_to(home, _POOLS):
        return not _is_idle(innermost)
    return not _belongs_to(home, _TOOLS)


def _is_idle(frame):
    """
    Return whether a pool's thread is idle: its stack holds only functions of the pool.
    """
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == "threading" and function not in _START_OF_A_THREAD:
            return False
        if module == "concurrent.futures.thread" and function == "run":  # it runs a work item
            return False
        if module != "threading" and not _belongs_to(module, _POOLS_OWN):
            return False
        frame = frame.f_back
    return True


def _has_process():
    return any(map(_runs_for_learner, children_of(os.getpid())))


def _runs_for_learner(pid):
    try:
        child = psutil.Process(pid)
        command = f"{child.name()} {' '.join(child.cmdline())}"
        ended = child.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False  # the process ended while we looked
    return not ended and not any(tool in command for tool in _TOOL_PROCESSES)
