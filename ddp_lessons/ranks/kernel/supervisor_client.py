"""
The supervisor client: it starts the supervisor, sends orders to it, and receives its messages.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ddp_lessons.errors import RanksGone, StartFailed
from ddp_lessons.ranks.messages.json_messages import message_to_json
from ddp_lessons.ranks.messages.orders import (
    ControllerDied,
    ControllerStarted,
    EndAll,
    OrderFailed,
    RankProcessDied,
    RankStarted,
    RemoveAtEnd,
    RunAtEnd,
    SignalRanks,
    StartController,
    SupervisorGone,
    TorchImported,
    from_json,
)
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.json_pipe import json_pipe_pair
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout
from ddp_lessons.ranks.system.runtime_folder import (
    make_runtime_folder,
    open_private,
    remove_runtime_folder,
)

if TYPE_CHECKING:
    from ddp_lessons.ranks.messages.orders import Event, Order

_LOG_LINES = 12


class SupervisorClient:
    """
    The kernel's end of the supervisor's pipe. The supervisor and its children end with `stop`, or
    with this process.

    Args:
        fork: True to have ranks forked, False to have them started as fresh interpreters.
    """

    def __init__(self, fork: bool = True) -> None:
        self.folder = make_runtime_folder()
        # rank -> id of its living process. Each change makes a new dict, as other threads read it.
        self.pids: dict[int, int] = {}
        self.controller_pid: int | None = None
        self.controller_ordered = False
        self.machine_facts: TorchImported | None = None
        self.error: str | None = None
        self.gone = False
        self.ended: set[int] = set()  # ranks whose last process has ended, and that have no new one
        # rank -> (process id, exit code or minus the signal) of its last end
        self.last_death: dict[int, tuple[int, int]] = {}
        # a file that is open while the quota counts these ranks (see `rank_quota`)
        self.quota_lock: IO[Any] | None = None
        self._files: list[str] = []
        self._listeners: list[Callable[[Any], object]] = []
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._link, theirs = json_pipe_pair()
        try:
            self._process = self._start_supervisor(theirs, "fork" if fork else "spawn")
            self.supervisor_pid = self._process.pid
            threading.Thread(
                target=self._listen, name="ddp-lessons-supervisor", daemon=True
            ).start()
        except BaseException:  # such as Stop, or no memory for a process or a thread
            if self._process is not None:
                self.stop()
            self._link.close()  # a supervisor that has started by now ends
            remove_runtime_folder(self.folder)
            raise
        finally:
            theirs.sock.close()

    def _start_supervisor(self, link, how):
        command = [  # -P: libraries must not import a learner's own random.py
            sys.executable, "-P", "-m", "ddp_lessons.ranks.supervisor.supervisor",
            str(link.fileno()), str(os.getpid()), str(self.folder), how,
        ]  # fmt: skip
        with os.fdopen(open_private(self.folder / "supervisor.log"), "ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[link.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal is for the kernel alone
            )

    def order(self, order: Order) -> None:
        """
        Send an order to the supervisor.

        Raises:
            RanksGone: The supervisor has ended.
        """
        if not self._link.send(**message_to_json(order)):
            raise RanksGone(
                "The ranks are gone: their supervisor has ended. Call start_ranks() again."
            )

    def order_controller(self, arguments: list[str]) -> None:
        """
        Order the supervisor to start the controller, with these command line arguments.
        """
        self.controller_ordered = True
        self.order(StartController(arguments))

    def remove_at_end(self, paths: list[str]) -> None:
        """
        Have files removed when the ranks end: by the supervisor, or by `stop` if it was killed.
        """
        self._files += paths
        self.order(RemoveAtEnd(paths))

    def run_at_end(self, commands: list[list[str]]) -> None:
        """
        Have the supervisor run commands when the ranks end, in place of any earlier ones.

        Args:
            commands: Command lines, each a list of words, that end ranks of other launchers.
        """
        self.order(RunAtEnd(commands))

    def on_event(self, listener: Callable[[Event], object]) -> None:
        """
        Call `listener(message)`, in the listening thread, for every message of the supervisor.
        """
        self._listeners.append(listener)

    def off_event(self, listener: Callable[[Event], object]) -> None:
        """
        Stop calling a listener.
        """
        self._listeners.remove(listener)

    def _listen(self):
        while (messages := self._link.receive()) is not None:
            for message in messages:
                self._tell(from_json(message))
        self._process.wait()  # the link closes as the supervisor ends
        self._tell(SupervisorGone())

    def _tell(self, event):
        self._note(event)
        for listener in list(self._listeners):
            listener(event)

    def _note(self, event):
        with self._changed:
            match event:
                case RankStarted(rank, pid):
                    self.pids = {**self.pids, rank: pid}
                    self.ended.discard(rank)
                case RankProcessDied(rank, pid, code):
                    self.last_death[rank] = (pid, code)
                    self.ended.add(rank)
                    if self.pids.get(rank) == pid:
                        self.pids = {r: p for r, p in self.pids.items() if r != rank}
                case ControllerStarted(pid):
                    self.controller_pid = pid
                case ControllerDied(code):
                    self.error = f"the controller ended with code {code}"
                case TorchImported():
                    self.machine_facts = event
                case OrderFailed(error):
                    self.error = error
                case SupervisorGone():
                    self.gone = True
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object], timeout_s: float, what: str) -> None:
        """
        Wait until `condition()` is true. Seconds in which the supervisor works do not count.

        Args:
            condition: Function whose result counts as true or false.
            timeout_s: Seconds of sleep of the supervisor after which to give up.
            what: The thing that is waited for, for the message.

        Raises:
            StartFailed: The supervisor reported an error, ended, or slept for `timeout_s` seconds.
        """
        time_limit = LoadAwareTimeout(timeout_s, lambda: [self.supervisor_pid])
        with self._changed:
            while not (condition() or self.error or self.gone or time_limit.is_over):
                self._changed.wait(clocks.SUPERVISOR_LOOK_EVERY_S)
            if condition():
                return
            self.check()
            raise StartFailed(
                f"Ranks could not be started: {what} did not happen in {timeout_s:.0f} s."
                f'{self.log_tail()} Run "ddp-lessons doctor" to see what this machine lacks.'
            )

    def check(self) -> None:
        """
        Raise an error if the supervisor has failed; else do nothing.

        Raises:
            StartFailed: The supervisor reported an error or ended.
        """
        if self.error or self.gone:
            fault = self.error or "the supervisor ended"
            raise StartFailed(f"Ranks could not be started: {fault}.{self.log_tail()}")

    def log_tail(self, *names: str) -> str:
        """
        Return the last lines of some logs. Default: of the supervisor's and the controller's.
        """
        lines = []
        for name in names or ("supervisor", "controller"):
            try:
                text = (self.folder / f"{name}.log").read_text(errors="replace").strip()
            except OSError:
                continue
            lines += [f"{name}: {line}" for line in text.splitlines()[-_LOG_LINES:]]
        return "".join(f"\n  {line}" for line in lines) + ("\n" if lines else "")

    def signal_ranks(self, ranks: Iterable[int], signum: int) -> None:
        """
        Send a signal to the processes of some ranks.
        """
        self.order(SignalRanks(list(ranks), int(signum)))

    def stop(self) -> None:
        """
        End the supervisor and all its children, and wait until it has ended.
        """
        self._link.send(**message_to_json(EndAll()))
        try:
            self._process.wait(timeout=clocks.SUPERVISOR_END_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)  # its children end with it
            self._process.wait()
        self._link.close()
        if self.quota_lock is not None:
            self.quota_lock.close()
        for path in self._files:  # the supervisor has removed them, unless it was killed
            Path(path).unlink(missing_ok=True)
        remove_runtime_folder(self.folder)
