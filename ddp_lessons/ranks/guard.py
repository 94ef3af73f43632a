"""
The guard of one rank: frees it when the kernel says so, tells where it is, joins it to its group.

It lives in the rank's process and works from threads of its own, because the main thread may be
waiting inside C++, where no signal handler of Python's runs. Two ways lead to it:

- the engine's control channel, served by a thread of the engine: `place` and `release` requests;
- SIGINT, seen through a wake-up pipe: the same as a `release` request.
"""

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

_MOST_FRAMES = 10  # of a traceback's beginning and of its end


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
        do_apply = kernel.do_apply
        kernel.do_apply = lambda *args: self._guard_apply(do_apply, args)
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
        _shorten(sys.exc_info()[2])
        showtraceback(*args, **kwargs)

    def _on_interrupt(self, signum, frame):
        if self.busy:
            raise KeyboardInterrupt

    def _watch(self, reader):
        parent_pid = os.getppid()
        while True:
            ready, _, _ = select.select([reader], [], [], 1.0)
            if ready and signal.SIGINT in os.read(reader, 64) and not self.released:
                self.free_main_thread()
            if os.getppid() != parent_pid:  # for systems that cannot tie a child to its parent
                os._exit(1)

    # ---- around a cell ----

    def _before_cell(self, info):
        self.released = False
        self._cell_source = info.raw_cell or ""
        cell = self.shell.transform_cell(self._cell_source)
        self._cell_file = self.shell.compile.get_code_name(
            self._cell_source, cell, self.shell.execution_count
        )
        self._cell_began_ns = time.time_ns()
        self._counts_before = self._counts()
        self.busy = True

    def tell_lines_of(self, file, source):
        """
        Until the cell ends, say where this rank is by lines of another cell, whose function runs.

        Args:
            file: The name under which IPython compiled that cell.
            source: Its text.
        """
        self._cell_file, self._cell_source = file, source

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

    def _guard_apply(self, do_apply, args):
        # A function that a view sends can wait for ever too; it has no cell and no lines.
        self.released = False
        self._cell_began_ns = time.time_ns()
        self.busy = True
        try:
            return do_apply(*args)
        finally:
            self.busy = False

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

    def free_main_thread(self):
        """
        Cut this rank's communication, so that every wait in it ends.
        """
        self.released = True
        release(self._spared_sockets, self._main_thread_id)

    def release(self):
        """
        Free the main thread, whatever it waits for, and interrupt a running cell.
        """
        self.free_main_thread()
        if self.busy:
            os.kill(os.getpid(), signal.SIGINT)


def _shorten(traceback):
    # IPython takes seconds to render a thousand frames, in which this rank would seem stuck.
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    if len(frames) > 2 * _MOST_FRAMES:
        frames[_MOST_FRAMES - 1].tb_next = frames[-_MOST_FRAMES]


def _refuse_exit():
    raise SystemExit("exit() in a cell: it would end the rank. Use ranks.stop() to end all ranks.")


def current_guard():
    """
    Return the guard of this process. Only ranks have one.
    """
    from ipykernel.zmqshell import ZMQInteractiveShell

    return vars(ZMQInteractiveShell.instance())["ddp_lessons_guard"]
