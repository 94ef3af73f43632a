"""
The guard of one rank: frees it when the kernel says so, tells where it is, joins it to its group.

It lives in the rank's process and works from threads of its own, because the main thread may be
waiting inside C++, where no signal handler of Python's runs. Two ways lead to it:

- the engine's control channel, served by a thread of the engine: `place` and `release` requests;
- SIGINT, seen through a wake-up pipe: the same as a `release` request.
"""

import gc
import hashlib
import json
import os
import select
import signal
import sys
import threading
import time
import warnings

from ddp_lessons.ranks.release import open_sockets, release
from ddp_lessons.ranks.where import (
    line_of_error,
    main_thread_place,
    recorded_collectives,
    source_line,
    text_of_error,
)


class Guard:
    """
    Watch over the main thread of this rank.

    Args:
        shell: The engine's IPython shell.
        rank: This rank, which is the engine's id.
    """

    def __init__(self, shell, rank):
        self.shell = shell
        self.rank = rank
        self.busy = False
        self.released = False
        self._spared_sockets = set()
        self._main_thread_id = threading.main_thread().ident
        self._cell_file = None
        self._cell_source = ""
        self._cell_began_ns = 0
        self._counts_before = None
        self._report = None

    def start(self, kernel):
        """
        Hook into the engine. Call it from the main thread, before any process group exists.

        Args:
            kernel: The engine's ipyparallel kernel.
        """
        self._spared_sockets = open_sockets()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._on_interrupt)
        # ipykernel would put its own SIGINT handler in place for the length of a cell. Ours raises
        # only while the learner's code runs, so that no reply of the engine is lost.
        kernel.pre_handler_hook = lambda: None
        kernel.post_handler_hook = lambda: None
        finish_metadata = kernel.finish_metadata
        kernel.finish_metadata = lambda *args: self._add_report(args[-1], finish_metadata(*args))
        self.shell.ask_exit = _refuse_exit
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")
        showtraceback = self.shell.showtraceback
        self.shell.showtraceback = lambda *args, **kwargs: self._show(showtraceback, args, kwargs)
        self.shell.events.register("pre_run_cell", self._before_cell)
        self.shell.events.register("post_run_cell", self._after_cell)
        watcher = threading.Thread(target=self._watch, args=(reader,), daemon=True)
        watcher.name = "ddp-lessons-guard"
        watcher.start()

    def _show(self, showtraceback, args, kwargs):
        self.busy = False  # the learner's code is over; an interrupt now would hit the rendering
        showtraceback(*args, **kwargs)

    def _on_interrupt(self, signum, frame):
        if self.busy:
            raise KeyboardInterrupt

    def _watch(self, reader):
        parent_pid = os.getppid()
        while True:
            ready, _, _ = select.select([reader], [], [], 1.0)
            if ready and signal.SIGINT in os.read(reader, 64) and not self.released:
                self._free_main_thread()
            if os.getppid() != parent_pid:  # for systems that cannot tie a child to its parent
                os._exit(1)

    # ---- around a cell ----

    def _before_cell(self, info):
        self.released = False
        self._cell_source = info.raw_cell or ""
        cell = self.shell.transform_cell(self._cell_source)
        self._cell_file = self.shell.compile.get_code_name(
            cell, self._cell_source, self.shell.execution_count
        )
        self._cell_began_ns = time.time_ns()
        self._counts_before = self._counts()
        self.busy = True

    def _after_cell(self, result):
        self.busy = False
        self._report = {
            "released": self.released,
            "digest": "",
            "line": None,
            "code": "",
            "text": "",
        }
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            self._report["digest"] = self._digest()
        else:
            self._report["text"] = text_of_error(error)
            self._report["line"] = line_of_error(error, self._cell_file)
            self._report["code"] = source_line(self._cell_source, self._report["line"])
        self._cell_file = None

    def _add_report(self, reply, metadata):
        # ipyparallel's client keeps a reply's content and an error's engine_info, no metadata.
        if self._report is not None:
            reply["ddp_lessons"] = self._report
            if "engine_info" in reply:
                reply["engine_info"]["ddp_lessons"] = self._report
            self._report = None
        return metadata

    def _in_group(self):
        dist = sys.modules.get("torch.distributed")
        return dist is not None and dist.is_initialized()

    def _counts(self):
        # Cheap, where reading the flight recorder is not: most cells communicate nothing.
        if not self._in_group():
            return None
        world = sys.modules["torch.distributed"].distributed_c10d._world
        return [
            (group.group_name, group._get_sequence_number_for_group())
            for group, (backend, _) in world.pg_map.items()
            if backend in ("gloo", "nccl")
        ]

    def collectives_of_cell(self):
        """
        Return the collectives that the current or last cell issued on this rank, oldest first.
        """
        if not self._in_group():
            return []
        found = recorded_collectives(self._cell_began_ns)
        return [c for c in found if not c["is_p2p"]]

    def _digest(self):
        # Equal digests, the normal case, cost the kernel one comparison of short strings.
        if self._counts() == self._counts_before:
            return ""
        collectives = self.collectives_of_cell()
        for collective in collectives:
            del collective["record"]
        text = json.dumps(collectives, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # ---- requests ----

    def place(self):
        """
        Say where this rank is: see `where.main_thread_place`; and its collectives in this cell.
        """
        place = main_thread_place(self._main_thread_id, self._cell_file, self._cell_source)
        place.update(rank=self.rank, busy=self.busy, collectives=self.collectives_of_cell())
        place["groups"] = self._group_ranks()
        return place

    def _group_ranks(self):
        if not self._in_group():
            return {}
        world = sys.modules["torch.distributed"].distributed_c10d._world
        return {
            group.group_name: sorted(world.pg_group_ranks[group])
            for group in list(world.pg_map)
            if group in world.pg_group_ranks
        }

    def _free_main_thread(self):
        self.released = True
        release(self._spared_sockets, self._main_thread_id)

    def release(self):
        """
        Free the main thread, whatever it waits for, and interrupt a running cell.
        """
        self._free_main_thread()
        if self.busy:
            os.kill(os.getpid(), signal.SIGINT)


def _refuse_exit():
    raise SystemExit("exit() in a cell: it would end the rank. Use ranks.stop() to end all ranks.")


def current_guard():
    """
    Return the guard of this process. Only ranks have one.
    """
    from ipykernel.zmqshell import ZMQInteractiveShell

    return ZMQInteractiveShell.instance().ddp_lessons_guard


def join(store_file, world_size, backend, device, timeout_s=None):
    """
    Join this rank to the group of all ranks, after leaving the one that it may be in.

    Collective: every rank must call it.

    Returns:
        list[str]: Names in the learner's namespace whose objects still hold an earlier group,
        such as a DDP model. They must be made again.
    """
    from ddp_lessons.process_group import join_group

    leave()
    join_group(store_file, current_guard().rank, world_size, backend, device, timeout_s)
    return holders_of_old_groups()


def leave():
    """
    Leave the group, also when its sockets are cut, and drop the tracebacks that may hold it.

    Returns:
        list[str]: As `join`.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return []
    guard = current_guard()
    _forget_exceptions(guard.shell)
    # A thread of Gloo's that still waits for a peer would block the group's destruction.
    release(guard._spared_sockets, guard._main_thread_id)
    dist.destroy_process_group()
    gc.collect()
    return holders_of_old_groups()


def _forget_exceptions(shell):
    # The last exception holds the frames that hold the group, with its sockets and threads.
    shell.InteractiveTB.tb = None
    shell.last_execution_result = None
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        if hasattr(sys, name):
            delattr(sys, name)


def holders_of_old_groups():
    """
    Return the names in the learner's namespace that hold a process group which is no more.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    living = set(dist.distributed_c10d._world.pg_map)
    found = []
    for name, value in current_guard().shell.user_ns.items():
        if isinstance(value, DistributedDataParallel):
            group = value.process_group
        elif isinstance(value, dist.ProcessGroup):
            group = value
        else:
            continue
        if not name.startswith("_") and group not in living:
            found.append(name)
    return sorted(found)
