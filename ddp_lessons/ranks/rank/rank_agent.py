"""
The rank agent: it takes snapshots of its rank, and releases the rank's main thread on request.

The agent is part of the rank's process and works in threads other than the main thread, which may
be waiting inside C++, where no Python signal handler runs. Requests reach the agent in two ways:

- the engine's control channel, served by a thread of the engine: `snapshot`, `state` and `release`;
- SIGINT, seen through a wake-up pipe: the same as a `release` request.

The agent answers a release once it is done. So the kernel knows when no release is under way, and
starts no cell or join before: a late release would cut the connections of the new group.
"""

import contextlib
import hashlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

from ddp_lessons.private.gloo_wakeup import wake_forgotten_threads
from ddp_lessons.ranks.messages.report import CellReport
from ddp_lessons.ranks.messages.snapshot import AgentState, Collective, RankSnapshot
from ddp_lessons.ranks.rank.background_activity import BackgroundActivity
from ddp_lessons.ranks.rank.interrupts import Interrupts
from ddp_lessons.ranks.rank.rank_kernel import RankKernel, RankShell
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
from ddp_lessons.ranks.system.network_interfaces import group_variables
from ddp_lessons.ranks.system.thread_stats import name_engine_threads


class RankAgent:
    """
    The rank agent of this process: it watches and releases the main thread.

    Args:
        kernel: The engine's RankKernel.
        rank: This rank, which is the engine's id.
    """

    def __init__(self, kernel: RankKernel, rank: int) -> None:
        self.shell: RankShell = kernel.shell
        self.rank = rank
        self.busy = self.released = self._raised_by_itself = False
        self._interrupts = Interrupts(lambda: self.busy, self._on_stop, kernel.cancel_await)
        self._kernel = kernel
        self._spared_sockets: SparedSockets | None = None
        self._main_thread_id: int = threading.main_thread().ident or 0
        self._cell_file: str | None = None
        self._cell_source = ""
        self._cell_began_ns = 0
        self._counts_before: list[tuple[str, int]] | None = None
        self._report: CellReport | None = None
        self._helpers: BackgroundActivity | None = None
        self._enclose: Callable[[], object] | None = None  # see `enclose`
        self._before_next: list[Callable[[], object]] = []  # see `before_next_run`
        self.opened_store: object = None  # what `group_membership.open_store` has opened, or None
        self.group_variables = group_variables()  # noted now, because a cell may change them

    def start(self) -> None:
        """
        Register with the engine. Call it from the main thread, before any process group exists.
        """
        self._spared_sockets = SparedSockets()
        self.shell.ask_exit = _refuse_exit  # type: ignore[method-assign]
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")
        self.shell.events.register("pre_run_cell", self._before_cell)
        self.shell.events.register("post_run_cell", self._after_cell)
        self._interrupts.start()

    def show_error(
        self, showtraceback: Callable[..., None], args: Sequence[object], kwargs: dict[str, object]
    ) -> None:
        """
        Show the current exception: with a traceback, or briefly if a release raised it.

        Args:
            showtraceback: IPython's method, with its `args` and `kwargs`.
        """
        # Decide this first: a release that comes from now on did not cause this error.
        self._raised_by_itself = not (self.released and may_come_of_a_release(sys.exc_info()[1]))
        # The code of the innermost cell has ended: an interrupt now would hit the rendering, or
        # IPython's callbacks, which catch it. The shell sets `busy` again if an outer cell goes on.
        self.busy = False
        with self._kernel.streams.own():
            self._render(showtraceback, args, kwargs)

    def _render(self, showtraceback, args, kwargs):
        if self.released and not self._raised_by_itself:  # the kernel shows only its line
            show_briefly(self.shell)
            return
        _, error, traceback = sys.exc_info()
        shorten(traceback)
        # The peer was released earlier, or died: most ranks with this error are collateral.
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
        if self._helpers is None:  # by now the engine has started all the threads that it needs
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

    def tell_lines_of(self, file: str, source: str) -> None:
        """
        Report lines of another cell, whose function runs, in snapshots until this cell ends.

        Args:
            file: The name under which IPython compiled the other cell.
            source: The other cell's text.
        """
        self._cell_file, self._cell_source = file, source

    def _after_cell(self, result):
        self.busy = False
        if self.shell.num_cells > 1:
            return
        if result.success:  # an error that `%%capture` has swallowed counts as the cell's
            result.error_in_exec = self.shell.inner_error
        error = result.error_before_exec or result.error_in_exec
        by_itself = self._raised_by_itself or not may_come_of_a_release(error)
        self._report = CellReport(
            released=self.released and not by_itself,
            **({"digest": self._digest()} if error is None else self._words_for(error)),
        )
        self._cell_file, self._cell_source = None, ""
        if self._enclose is not None:
            self._report = replace(self._report, enclosed=self._enclose())
            self._enclose = None

    def _words_for(self, error):
        line = line_of_error(error, self._file_of_cell())
        code = source_line(self._cell_source, line)
        return {"text": text_of_error(error), "line": line, "code": code}

    def _file_of_cell(self):
        """
        Return the name under which the running cell was compiled, or None if no cell runs.
        """
        if self._cell_file is None and self._cell_source:
            return self.shell.compile.get_code_name(self._cell_source, "", 0)
        return self._cell_file

    def enclose(self, give: Callable[[], object]) -> None:
        """
        Add an object to the running cell's reply, however the cell ends.

        Args:
            give: Function that returns the object, as plain data. It is called after the cell has
                ended, when no interrupt can come any more.
        """
        self._enclose = give

    def before_next_run(self, do: Callable[[], object]) -> None:
        """
        Call a function when the next cell or function begins: all ranks have ended this one then.

        Args:
            do: A function without arguments.
        """
        self._before_next.append(do)

    @contextlib.contextmanager
    def function_runs(self) -> Iterator[None]:
        """
        Watch, in a `with` block, a function that a view sends. It can block as a cell can.
        """
        was_busy, self.busy = self.busy, True
        if not was_busy:  # else a cell waits in an `await`, and goes on after the function
            self._begin()
            self._cell_began_ns = time.time_ns()
        try:
            yield
        finally:
            self.busy = was_busy

    def take_report(self) -> CellReport | None:
        """
        Return the report on the cell that has ended, once; None after a function.
        """
        report, self._report = self._report, None
        return report

    def collectives_of_cell(self) -> list[Collective]:
        """
        Return the collectives that the current or last cell issued on this rank, oldest first.
        """
        if not is_in_group():
            return []
        found = recorded_collectives(self._cell_began_ns)
        return [collective for collective in found if not collective.is_p2p]

    def _digest(self):
        # Digests are equal in the normal case, and the kernel then compares short strings only.
        if counts_of_groups() == self._counts_before:
            return ""
        collectives = [asdict(collective) for collective in self.collectives_of_cell()]
        for collective in collectives:
            del collective["record"]
        text = json.dumps(collectives, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # ---- requests ----

    def snapshot(self) -> RankSnapshot:
        """
        Return the RankSnapshot of this rank.
        """
        coroutine = (cell := self._kernel.awaiting_cell) and cell.get_coro()
        file = self._file_of_cell()
        return replace(
            main_thread_snapshot(self._main_thread_id, file, self._cell_source, coroutine),
            rank=self.rank,
            busy=self.busy,
            collectives=self.collectives_of_cell(),
            groups=members_of_groups(),
            helpers=self._helpers.that_may_act() if self._helpers else [],
            replied_to=self._kernel.replied_to,
        )

    def free_main_thread(self) -> None:
        """
        Cut this rank's communication, so that each of its waits for a peer or a store ends.
        """
        self.released = self.released or self.busy
        for path in release(self._spared_sockets.now(), self._main_thread_id):
            self.before_next_run(partial(take_away, path))

    def release(self) -> AgentState:
        """
        Release the main thread from any wait, and interrupt a running cell.

        Returns:
            AgentState: As `state` returns it, after that.
        """
        self.free_main_thread()
        if self.busy:
            self._interrupts.send()
        return self.state()

    def wake(self) -> int:
        """
        Wake the threads that still wait for a message, though all connections were cut.

        Returns:
            int: Number of threads that were woken.
        """
        return wake_forgotten_threads() if "torch.distributed" in sys.modules else 0

    def state(self) -> AgentState:
        """
        Return the AgentState of this rank.
        """
        frame = sys._current_frames().get(self._main_thread_id)
        in_loop = frame is not None and frame.f_code.co_name == "select"
        return AgentState(
            idle=in_loop and not self.busy,
            num_interrupts=self._interrupts.num,
            replied_to=self._kernel.replied_to,
        )


def _refuse_exit():
    raise SystemExit("exit() in a cell: it would end the rank. Use ranks.stop() to end all ranks.")


def current_agent() -> RankAgent:
    """
    Return the rank agent of this process. Only ranks have one.
    """
    return RankShell.instance().agent
