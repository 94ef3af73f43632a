"""
The host agent: it starts, signals and awaits processes on its host, on orders of a remote kernel.

    python -P -m ddp_lessons.ranks.supervisor.host_agent PYTHON

The kernel starts the host agent through one SSH login. Each line of the input is an order in JSON.
Each line of the output that begins with MARK is an answer in JSON; other lines may be a greeting of
the host. Where forking is safe and a rank's command begins with PYTHON, the host agent imports
torch once and forks the rank. It starts any other command as a new process. The host agent has one
thread only, because forking a process with threads is not safe.

The host agent ends when the login ends. It kills the processes that it has started, unless the
kernel has ordered to keep them. So a start that fails on another host, or is stopped, leaves
nothing here.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from typing import TextIO

from ddp_lessons.ranks.messages.host_orders import (
    MARK,
    AskHost,
    HostAnswer,
    HostAnswers,
    HostOrder,
    KeepProcesses,
    LogTail,
    ProcessEnded,
    ProcessStarted,
    SendLog,
    SignalProcess,
    StartProcess,
    host_order_from_json,
)
from ddp_lessons.ranks.messages.json_messages import message_to_json
from ddp_lessons.ranks.supervisor import child_main
from ddp_lessons.ranks.system.processes import can_fork

_TAIL_BYTES = 20000


class Agent:
    """
    The host agent, with the processes that it has started through one login.

    Args:
        orders: File descriptor from which it reads the orders.
        output: File to which it writes the answers.
        python: First word of the command line of ranks that it may fork.
    """

    def __init__(self, orders: int, output: TextIO, python: str) -> None:
        self._orders = orders
        self._output = output
        self._for_forks = [python, *child_main.RANK_OPTIONS]
        self._logs: dict[str, str] = {}  # key -> path of the process's log
        self._pids: dict[str, int] = {}  # key -> id of a running process
        self._keeps = False
        self._has_torch = False

    def _answer(self, answer: HostAnswer) -> None:
        # If the login is closed, no kernel reads the answer, and writing it is an error.
        with contextlib.suppress(OSError):
            self._output.write(MARK + json.dumps(message_to_json(answer)) + "\n")
            self._output.flush()

    # ---- orders ----

    def carry_out(self, order: HostOrder) -> None:
        """
        Carry out one HostOrder, and answer it if it asks for an answer.
        """
        match order:
            case StartProcess():
                self._start(order)
            case SendLog(key) if key in self._pids:
                self._answer(LogTail(key, self._tail(key)))
            case SignalProcess(key, number) if key in self._pids:
                os.kill(self._pids[key], number)
            case KeepProcesses():
                self._keeps = True
            case AskHost():
                self._answer(HostAnswers())

    def _start(self, order: StartProcess) -> None:
        key, words, variables, log = order.key, order.words, order.variables, order.log
        environment = {name: value for name, value in os.environ.items() if name not in variables}
        environment.update({name: str(value) for name, value in variables.items() if value})
        try:
            for needed in (order.folder, os.path.dirname(log)):
                os.makedirs(needed, mode=0o700, exist_ok=True)
            with open(log, "wb") as file:
                if words[: len(self._for_forks)] == self._for_forks and can_fork()[0]:
                    pid = self._fork(words[len(self._for_forks) :], environment, log)
                else:
                    pid = _start_command(words, environment, file)
        except OSError as error:
            self._answer(ProcessEnded(key, None, str(error)))
            return
        self._logs[key], self._pids[key] = log, pid
        self._answer(ProcessStarted(key, pid))

    def _fork(self, arguments, environment, log):
        if not self._has_torch:
            child_main.import_for_forks()
            self._has_torch = True
        return child_main.fork_child(
            log, self._in_child, arguments, environment, dies_with_parent=False
        )

    def _in_child(self, arguments, environment):
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, self._orders)  # the login ends once no process holds its pipes
        os.close(nothing)
        child_main.run_launched_rank(arguments, environment)

    # ---- the loop ----

    def run(self) -> None:
        """
        Carry out orders until the login ends, and report each process that has ended.
        """
        ends, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # Python writes to the pipe if this is set
        selector = selectors.DefaultSelector()
        selector.register(self._orders, selectors.EVENT_READ)
        selector.register(ends, selectors.EVENT_READ)
        unread = b""
        self._answer(HostAnswers())
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if ends in ready:
                os.read(ends, 4096)
                self._say_ends()
            if self._orders in ready:
                received = os.read(self._orders, 65536)
                if not received:
                    break
                *lines, unread = (unread + received).split(b"\n")
                for line in lines:
                    self.carry_out(host_order_from_json(json.loads(line)))
        self.close()

    def _say_ends(self):
        keys = {pid: key for key, pid in self._pids.items()}
        for pid, code in child_main.reap():
            if pid in keys:
                key = keys[pid]
                self._answer(ProcessEnded(key, code, self._tail(key)))
                os.remove(self._logs[key])
                del self._pids[key]

    def _tail(self, key):
        with open(self._logs[key], "rb") as file:
            file.seek(max(0, os.path.getsize(self._logs[key]) - _TAIL_BYTES))
            return file.read().decode(errors="replace")

    def close(self) -> None:
        """
        Kill all processes, unless the kernel has ordered to keep them.
        """
        for pid in () if self._keeps else self._pids.values():
            os.kill(pid, signal.SIGKILL)


def _start_command(words, environment, file):
    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # else the end of the login would end the process
    )
    process.returncode = 0  # keeps Popen from waiting: the host agent's loop collects the process
    return process.pid


def main() -> None:
    """
    Run the host agent on this process's standard input and output.
    """
    child_main.prepare_to_fork()
    Agent(sys.stdin.fileno(), sys.stdout, *sys.argv[1:]).run()


if __name__ == "__main__":
    main()
