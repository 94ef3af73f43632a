"""
One login on a host, through which all of its ranks are started and ended.

ipyparallel logs in some eight times for each engine, one after the other, and starts Python for
most of them.
"""

import asyncio
import contextlib
import json
import shlex
import subprocess
import tempfile
import threading
from concurrent.futures import Future

from ddp_lessons.ranks.supervisor.host_agent import MARK
from ddp_lessons.ranks.system import clocks

_AGENT = "ddp_lessons.ranks.supervisor.host_agent"
_HOST = None  # the key of what the agent says of its host
_LAST_LINES = 3


class HostLogin:
    """
    A login that runs our agent on a host. It is there at once; what it says comes when it comes.

    Args:
        ssh: The command that runs what follows on the host.
        python: The host's Python.

    Attributes:
        is_in: A Future, done when the agent answers, or when the login has ended without that.
        end: A Future, done when the login has ended.
        errors: The last lines of what ssh, or the host's Python, has complained of; empty until the
            end.
        is_silent: Whether the host has not answered in time.
    """

    def __init__(self, ssh, python):
        self._errors_file = tempfile.TemporaryFile()  # noqa: SIM115  # until ssh has ended
        self._process = subprocess.Popen(
            [*ssh, python, "-P", "-m", _AGENT, shlex.quote(python)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors_file,
            text=True,
            errors="replace",
            start_new_session=True,  # Stop in a notebook reaches all that is in the kernel's group
        )
        self.is_in: Future = Future()
        self.end: Future = Future()
        self.errors = ""
        self.is_silent = False
        self._listeners = {_HOST: self._on_first_message}
        self._answer = None
        threading.Thread(target=self._listen, name="ddp-lessons-login", daemon=True).start()

    def _write(self, text):
        with contextlib.suppress(OSError, ValueError):  # it has ended, which is told by `end`
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def _on_first_message(self, message):
        self.is_in.set_result(None)

    def order(self, do, **arguments):
        """
        Have the agent do something: see its methods.
        """
        self._write(json.dumps({"do": do, **arguments}) + "\n")

    def on_message(self, key, listener):
        """
        Have `listener(message)` called, from a thread, for all that the agent says of a process.
        """
        self._listeners[key] = listener

    async def answers(self):
        """
        Tell whether the host is there, as far as this login knows.
        """
        if self._answer is None:
            self._answer = Future()
            self._listeners[_HOST] = self._answer.set_result
            self.order("answer")
        answer = asyncio.shield(asyncio.wrap_future(self._answer))  # several may wait for it
        try:
            await asyncio.wait_for(answer, clocks.SSH_KNOCK_S)
        except TimeoutError:
            self.is_silent = True
        return not self.is_silent

    def _listen(self):
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(MARK):
                    message = json.loads(line.removeprefix(MARK))
                    self._listeners[message.pop("key")](message)
        code = self._process.wait()
        with self._errors_file as file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines()
        self.errors = "; ".join(lines[-_LAST_LINES:])
        self.end.set_result(code)
        if not self.is_in.done():
            self.is_in.set_result(None)

    def close(self):
        """
        End the login. What was started through it goes on if the agent keeps it.
        """
        with contextlib.suppress(OSError):  # of what it did not read any more
            self._process.stdin.close()
        try:
            self._process.wait(0.0 if self.is_silent else clocks.SSH_KNOCK_S)
        except subprocess.TimeoutExpired:  # that host is gone
            self._process.kill()
            self._process.wait()
