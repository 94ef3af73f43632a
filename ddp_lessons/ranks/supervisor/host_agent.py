"""
Start, signal and await processes on a host, as a kernel on another one orders through its login.

    python -P -m ddp_lessons.ranks.supervisor.host_agent PYTHON

Each line of the input is an order in JSON. Each line of the output that begins with MARK says what
has become of one; a host's greeting stands between them, perhaps. Ranks are forked from this
process, which imports torch once for all of its host, where that is safe and PYTHON is theirs; any
other command is started as it stands. It runs one thread only: forking a process with threads is
not safe.

When the login ends, the agent ends. What it has started goes on then, but only if it was told to
keep it: a start that fails elsewhere, or is stopped, leaves nothing here.
"""

import json
import os
import selectors
import signal
import subprocess
import sys

from ddp_lessons.ranks.supervisor import child_main
from ddp_lessons.ranks.system.processes import can_fork

MARK = "ddp-lessons "
_TAIL_BYTES = 20000


class Agent:
    """
    What has been started on this host through one login.

    Args:
        orders: File descriptor of the orders.
        output: The file to which it says what has become of them.
        python: The Python of the ranks that it may fork, as their command line has it.
    """

    def __init__(self, orders, output, python):
        self._orders = orders
        self._output = output
        self._for_forks = [python, *child_main.RANK_OPTIONS]
        self._logs = {}  # key -> file of what its process writes
        self._pids = {}  # key -> id of a process that runs
        self._keeps = False
        self._has_torch = False

    def say(self, **what):
        """
        Write one line. Where nobody listens any more, nothing is to be said.
        """
        try:
            self._output.write(MARK + json.dumps(what) + "\n")
            self._output.flush()
        except OSError:
            pass

    # ---- orders ----

    def start(self, key, words, variables, log, folder):
        """
        Start a process and say its id, or why it could not be started.

        Args:
            key: What it is called in orders and answers.
            words: Its command line.
            variables: Environment variables to set; an empty one is removed.
            log: File for what it writes.
            folder: A folder that must exist.
        """
        environment = {name: value for name, value in os.environ.items() if name not in variables}
        environment.update({name: str(value) for name, value in variables.items() if value})
        try:
            for needed in (folder, os.path.dirname(log)):
                os.makedirs(needed, mode=0o700, exist_ok=True)
            with open(log, "wb") as file:
                if words[: len(self._for_forks)] == self._for_forks and can_fork()[0]:
                    pid = self._fork(words[len(self._for_forks) :], environment, log)
                else:
                    pid = _start_command(words, environment, file)
        except OSError as error:
            self.say(key=key, code=None, said=str(error))
            return
        self._logs[key], self._pids[key] = log, pid
        self.say(key=key, pid=pid)

    def _fork(self, arguments, environment, log):
        if not self._has_torch:
            child_main.import_for_forks()
            self._has_torch = True
        return child_main.fork_child(
            log, self._in_child, arguments, environment, dies_with_parent=False
        )

    def _in_child(self, arguments, environment):
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, self._orders)  # the login ends when nobody holds its ends any more
        os.close(nothing)
        child_main.run_launched_rank(arguments, environment)

    def tell(self, key):
        """
        Say the last words of a process that runs.
        """
        if key in self._pids:
            self.say(key=key, said=self._tail(key))

    def signal(self, key, number):
        """
        Send a signal to a process, unless it has ended.
        """
        if key in self._pids:
            os.kill(self._pids[key], number)

    def keep(self):
        """
        Have all processes go on when the login ends.
        """
        self._keeps = True

    def answer(self):
        """
        Say that this host is there.
        """
        self.say(key=None, answers=True)

    # ---- the loop ----

    def run(self):
        """
        Carry out orders until there are no more, and say of each process when it has ended.
        """
        ends, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the pipe is written
        selector = selectors.DefaultSelector()
        selector.register(self._orders, selectors.EVENT_READ)
        selector.register(ends, selectors.EVENT_READ)
        unread = b""
        self.answer()
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
                    order = json.loads(line)
                    getattr(self, order.pop("do"))(**order)
        self.close()

    def _say_ends(self):
        keys = {pid: key for key, pid in self._pids.items()}
        for pid, code in child_main.reap():
            if pid in keys:
                key = keys[pid]
                self.say(key=key, code=code, said=self._tail(key))
                os.remove(self._logs[key])
                del self._pids[key]

    def _tail(self, key):
        with open(self._logs[key], "rb") as file:
            file.seek(max(0, os.path.getsize(self._logs[key]) - _TAIL_BYTES))
            return file.read().decode(errors="replace")

    def close(self):
        """
        End all processes, unless they are to be kept.
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
        start_new_session=True,  # or the end of the login would be its own
    )
    process.returncode = 0  # as far as Popen is to care: the agent's loop awaits it
    return process.pid


def main():
    """
    Be the agent of the login that this process is.
    """
    child_main.prepare_to_fork()
    Agent(sys.stdin.fileno(), sys.stdout, *sys.argv[1:]).run()


if __name__ == "__main__":
    main()
