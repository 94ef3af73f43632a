"""
Start, signal and await processes on a host, as a kernel on another one orders through its login.

This file is sent to the host and runs there before anything of ours is known to be there: plain
Python, no package. Each line of the input is an order in JSON. Each line of the output that begins
with MARK says what has become of one; a host's greeting stands between them, perhaps. When the
login ends, the agent ends. What it has started goes on then, but only if it was told to keep it: a
start that fails elsewhere, or is stopped, leaves nothing here.
"""

import json
import os
import subprocess
import sys
import threading

MARK = "ddp-lessons "
_TAIL_BYTES = 20000


class Agent:
    """
    What has been started on this host through one login.

    Args:
        output: The file to which it says what has become of its orders.
    """

    def __init__(self, output):
        self._output = output
        self._speaks = threading.Lock()
        self._logs = {}  # key -> file of what its process writes
        self._processes = {}
        self._keeps = False

    def say(self, **what):
        """
        Write one line. Where nobody listens any more, nothing is to be said.
        """
        with self._speaks:
            try:
                self._output.write(MARK + json.dumps(what) + "\n")
                self._output.flush()
            except OSError:
                pass

    def start(self, key, words, variables, log, folder):
        """
        Start a process and say its id, or why it could not be started; say its end, and its words.

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
                process = subprocess.Popen(
                    words,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # or the end of the login would be its own
                )
        except OSError as error:
            self.say(key=key, code=None, said=str(error))
            return
        self._logs[key], self._processes[key] = log, process
        self.say(key=key, pid=process.pid)
        threading.Thread(target=self._await, args=(key,), daemon=True).start()

    def _await(self, key):
        code = self._processes[key].wait()
        self.say(key=key, code=code, said=self._tail(key))
        os.remove(self._logs[key])

    def _tail(self, key):
        with open(self._logs[key], "rb") as file:
            file.seek(max(0, os.path.getsize(self._logs[key]) - _TAIL_BYTES))
            return file.read().decode(errors="replace")

    def tell(self, key):
        """
        Say the last words of a process that runs.
        """
        self.say(key=key, said=self._tail(key))

    def signal(self, key, number):
        """
        Send a signal to a process, unless it has ended.
        """
        self._processes[key].send_signal(number)

    def keep(self):
        """
        Have all processes go on when the login ends.
        """
        self._keeps = True

    def close(self):
        """
        End all processes, unless they are to be kept.
        """
        for process in () if self._keeps else self._processes.values():
            process.kill()

    def answer(self, key):
        """
        Say that this host is there.
        """
        self.say(key=key, answers=True)


def main(orders=sys.stdin, output=sys.stdout):
    """
    Carry out orders until there are no more.
    """
    agent = Agent(output)
    for line in orders:
        order = json.loads(line)
        getattr(agent, order.pop("do"))(**order)
    agent.close()


if __name__ == "__main__":
    main()
