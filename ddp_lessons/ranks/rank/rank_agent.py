"""
The agent of one rank: frees it when the kernel says so, tells where it is, joins it to its group.

It lives in the rank's process and works from threads of its own, because the main thread may be
waiting inside C++, where no signal handler of Python's runs. Two ways lead to it:

- the engine's control channel, served by a thread of the engine: `snapshot`, `state` and `release`;
- SIGINT, seen through a wake-up pipe: the same as a `release` request.

A release is answered once it is done. So the kernel knows when none is under way any more, and lets
no cell or join begin before: what comes late would cut what is new.
"""

import contextlib
import hashlib
import json
import sys
import threading
import time
import warnings
from functools import partial

from ddp_lessons.ranks.rank.background_activity import BackgroundActivity
from ddp_lessons.ranks.rank.gloo_wakeup import wake_forgotten_threads
from ddp_lessons.ranks.rank.interrupts import Interrupts
from ddp_lessons.ranks.rank.rank_kernel import RankShell
from ddp_lessons.ranks.rank.release import SparedSockets, release, take_away
from ddp_lessons.ranks.rank.stack_snapshot import (
    counts_of_groups,
    is_in_group,
    main_thread_snapshot,
    members_of_groups,
    recorded_collectives,
    source_line,
)
from ddp_lessons.ranks.rank.tracebacks import (
    comes_of_a_lost_peer,
    line_of_error,
    may_come_of_a_release,
    name_modules,
    shorten,
    show_briefly,
    show_plainly,
    text_of_error,
)
from ddp_lessons.ranks.system.cell_requests import REPORT
from ddp_lessons.ranks.system.network_interfaces import group_variables
from ddp_lessons.ranks.system.thread_stats import name_engine_threads


class RankAgent:
    """
    Watch over the main thread of this rank.

    Args:
        kernel: The engine's RankKernel.
        rank: This rank, which is the engine's id.
    """

    def __init__(self, kernel, rank):
        self.shell = kernel.shell
        self.rank = rank
        self.busy = False
        self.released = False
        self._interrupts = Interrupts(lambda: self.busy, self._on_stop, kernel.cancel_await)
        self._raised_by_itself = False
        self._kernel = kernel
        self._spared_sockets = None
        self._main_thread_id: int = threading.main_thread().ident or 0
        self._cell_file = None
        self._cell_source = ""
        self._cell_began_ns = 0
        self._counts_before = None
        self._report = None
        self._helpers = None
        self._enclose = None  # see `enclose`
        self._before_next: list = []  # see `before_next_run`
        self.opened_store = None  # see `membership.open_store`
        self.group_variables = group_variables()  # a cell may set others: see `membership.join`

    def start(self):
        """
        Hook into the engine. Call it from the main thread, before any process group exists.
        """
        self._spared_sockets = SparedSockets()
        self.shell.ask_exit = _refuse_exit
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")
        self.shell.events.register("pre_run_cell", self._before_cell)
        self.shell.events.register("post_run_cell", self._after_cell)
        self._interrupts.start()

    def show_error(self, showtraceback, args, kwargs):
        """
        Show the current exception: wholly if it is the rank's own, briefly if it was released.

        Args:
            showtraceback: IPython's method, with its `args` and `kwargs`.
        """
        # First of all: a release that comes now is none of this error's reasons.
        self._raised_by_itself = not (self.released and may_come_of_a_release(sys.exc_info()[1]))
        was_busy, self.busy = self.busy, False  # an interrupt now would hit the rendering
        with self._kernel.streams.own():
            self._render(showtraceback, args, kwargs)
        self.busy = was_busy and self.shell.num_cells > 1  # else the learner's code is over

    def _render(self, showtraceback, args, kwargs):
        if self.released and not self._raised_by_itself:  # nobody is told more of it than its line
            show_briefly(self.shell)
            return
        _, error, traceback = sys.exc_info()
        shorten(traceback)
        # The peer was freed first, or died: most of these ranks are victims.
        if comes_of_a_lost_peer(text_of_error(error)):
            show_plainly(self.shell)
            return
        name_modules(traceback)
        showtraceback(*args, **kwargs)

    def _on_stop(self):
        if self.busy and not self.released:
            self.free_main_thread()

    # ---- around a cell ----

    def _begin(self):
        while self._before_next:
            self._before_next.pop(0)()
        if self._helpers is None:  # by now the engine has started the threads that it needs
            name_engine_threads(self._kernel.control_thread)
            self._helpers = BackgroundActivity()
        self.released = self._raised_by_itself = False
        self._report = None
        self._interrupts.begin()

    def _before_cell(self, info):
        if self.shell.num_cells > 1:
            return
        self._begin()
        self._cell_source = info.raw_cell or ""
        self._cell_began_ns = time.time_ns()
        self._counts_before = counts_of_groups()
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
        if self.shell.num_cells > 1:
            return
        self.busy = False
        if result.success:  # an error that `%%capture` has kept to itself is the cell's
            result.error_in_exec = self.shell.inner_error
        error = result.error_before_exec or result.error_in_exec
        by_itself = self._raised_by_itself or not may_come_of_a_release(error)
        self._report = {"released": self.released and not by_itself}
        if error is None:
            self._report["digest"] = self._digest()
        else:
            self._report["text"] = text_of_error(error)
            self._report["line"] = line_of_error(error, self._file_of_cell())
            self._report["code"] = source_line(self._cell_source, self._report["line"])
        self._cell_file, self._cell_source = None, ""
        if self._enclose is not None:
            self._report["enclosed"] = self._enclose()
            self._enclose = None

    def _file_of_cell(self):
        """
        Return the name under which the running cell was compiled, or None if no cell runs.
        """
        if self._cell_file is None and self._cell_source:
            return self.shell.compile.get_code_name(self._cell_source, "", 0)
        return self._cell_file

    def enclose(self, give):
        """
        Send something along with the running cell's reply, however the cell ends.

        Args:
            give: Function that returns it, as plain data. It is called once the cell has ended, and
                no interrupt can come any more.
        """
        self._enclose = give

    def before_next_run(self, do):
        """
        Do something when the next cell or function begins, so after all ranks have ended this one.

        Args:
            do: A function.
        """
        self._before_next.append(do)

    @contextlib.contextmanager
    def function_runs(self):
        """
        Watch a function that a view sends: it can block, too, and has no cell and no lines.
        """
        was_busy, self.busy = self.busy, True
        if not was_busy:  # else a cell waits in an `await`, and goes on afterwards
            self._begin()
            self._cell_began_ns = time.time_ns()
        try:
            yield
        finally:
            self.busy = was_busy

    def add_report(self, reply):
        """
        Add to a reply what became of its cell.

        Args:
            reply: The content of the reply.
        """
        # ipyparallel's client keeps a reply's content and an error's engine_info, no metadata.
        if self._report is not None:
            reply[REPORT] = self._report
            if "engine_info" in reply:
                reply["engine_info"][REPORT] = self._report
            self._report = None

    def collectives_of_cell(self):
        """
        Return the collectives that the current or last cell issued on this rank, oldest first.
        """
        if not is_in_group():
            return []
        found = recorded_collectives(self._cell_began_ns)
        return [c for c in found if not c["is_p2p"]]

    def _digest(self):
        # Equal digests, the normal case, cost the kernel one comparison of short strings.
        if counts_of_groups() == self._counts_before:
            return ""
        collectives = self.collectives_of_cell()
        for collective in collectives:
            del collective["record"]
        text = json.dumps(collectives, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # ---- requests ----

    def snapshot(self):
        """
        Say where this rank is: see `stack_snapshot.main_thread_snapshot`; its collectives in this cell, the
        members of its groups, and `helpers`, the learner's threads and processes that may act; and
        `replied_to`: see `RankKernel`.
        """
        cell = self._kernel.awaiting_cell
        snapshot = main_thread_snapshot(
            self._main_thread_id,
            self._file_of_cell(),
            self._cell_source,
            cell and cell.get_coro(),
        )
        snapshot.update(rank=self.rank, busy=self.busy, collectives=self.collectives_of_cell())
        snapshot["replied_to"] = self._kernel.replied_to
        snapshot["groups"] = members_of_groups()
        snapshot["helpers"] = self._helpers.that_may_act() if self._helpers else []
        return snapshot

    def free_main_thread(self):
        """
        Cut this rank's communication, so that every wait in it ends.
        """
        self.released = self.released or self.busy
        for path in release(self._spared_sockets.now(), self._main_thread_id):
            self.before_next_run(partial(take_away, path))

    def release(self):
        """
        Free the main thread, whatever it waits for, and interrupt a running cell.

        Returns:
            dict: As `state`.
        """
        self.free_main_thread()
        if self.busy:
            self._interrupts.send()
        return self.state()

    def wake(self):
        """
        Wake the threads that still wait for a message, though all connections were cut.

        Returns:
            int: How many they are.
        """
        return wake_forgotten_threads() if "torch.distributed" in sys.modules else 0

    def state(self):
        """
        Say whether this rank is `idle`, the `num_interrupts` that its cell has been given, and
        `replied_to`: see `RankKernel`.
        """
        frame = sys._current_frames().get(self._main_thread_id)
        in_loop = frame is not None and frame.f_code.co_name == "select"
        return {
            "idle": in_loop and not self.busy,
            "num_interrupts": self._interrupts.num,
            "replied_to": self._kernel.replied_to,
        }


def _refuse_exit():
    raise SystemExit("exit() in a cell: it would end the rank. Use ranks.stop() to end all ranks.")


def current_agent():
    """
    Return the agent of this process. Only ranks have one.
    """
    return RankShell.instance().agent
