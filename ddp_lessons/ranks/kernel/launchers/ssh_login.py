"""
One login on a host, through which all ranks of that host are started and ended.

ipyparallel itself logs in about eight times for each engine, one login after the other, and starts
Python in most of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import IO

from ddp_lessons.ranks.messages.host_orders import (
    MARK,
    AskHost,
    HostAnswer,
    HostOrder,
    host_answer_from_json,
)
from ddp_lessons.ranks.messages.json_messages import message_to_json
from ddp_lessons.ranks.system import clocks

_AGENT = "ddp_lessons.ranks.supervisor.host_agent"
_HOST = None  # key of the host agent's messages about its host
_LAST_LINES = 3
_OTHER_VERSION = "it has another version of the course: install the same on all hosts"


class HostLogin:
    """
    A login that runs our host agent on a host. It does not wait for the host.

    Args:
        ssh: The ssh command up to the host's name, a list of words.
        python: Path of Python on the host.

    Attributes:
        is_in: A Future, done when the host agent answers, or when the login ends without an answer.
        end: A Future, done when the login has ended.
        errors: The last error lines of ssh or of the host's Python; empty until the login has
            ended.
        is_silent: Whether the host has not answered in time.
    """

    def __init__(self, ssh: Sequence[str], python: str) -> None:
        self._errors_file = tempfile.TemporaryFile()  # noqa: SIM115  # until ssh has ended
        self._process = subprocess.Popen(
            [*ssh, python, "-P", "-m", _AGENT, shlex.quote(python)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors_file,
            text=True,
            errors="replace",
            start_new_session=True,  # Stop in a notebook reaches the kernel's process group
        )
        self._input: IO[str] = self._process.stdin  # type: ignore[assignment]  # it is a pipe
        self._output: IO[str] = self._process.stdout  # type: ignore[assignment]  # it is a pipe
        self.is_in: Future[None] = Future()
        self.end: Future[int] = Future()
        self.errors = ""
        self.is_silent = False
        self._listeners: dict[str | None, Callable[[HostAnswer], object]] = {
            _HOST: self._on_first_message
        }
        self._answer: Future[HostAnswer] | None = None
        threading.Thread(target=self._listen, name="ddp-lessons-login", daemon=True).start()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the login has ended, as `end` shows
            self._input.write(text)
            self._input.flush()

    def _on_first_message(self, message: HostAnswer) -> None:
        self.is_in.set_result(None)

    def order(self, order: HostOrder) -> None:
        """
        Send an order to the host agent.
        """
        self._write(json.dumps(message_to_json(order)) + "\n")

    def on_message(self, key: str, listener: Callable[[HostAnswer], object]) -> None:
        """
        Call `listener(message)`, in the listening thread, for each message about one process.

        Args:
            key: Name of the process in orders and messages.
            listener: Function of a HostAnswer.
        """
        self._listeners[key] = listener

    async def answers(self) -> bool:
        """
        Return whether the host agent answers soon. Once it has not, return False at every call.
        """
        if self._answer is None:
            self._answer = Future()
            self._listeners[_HOST] = self._answer.set_result
            self.order(AskHost())
        answer = asyncio.shield(asyncio.wrap_future(self._answer))  # several tasks may wait for it
        try:
            await asyncio.wait_for(answer, clocks.SSH_KNOCK_S)
        except TimeoutError:
            self.is_silent = True
        return not self.is_silent

    def _listen(self) -> None:
        fault = ""
        with self._output as output:
            for line in output:
                if line.startswith(MARK):
                    try:
                        message = host_answer_from_json(json.loads(line.removeprefix(MARK)))
                    except (KeyError, TypeError):
                        fault = _OTHER_VERSION
                        self._process.kill()
                        break
                    self._listeners[message.key](message)
        code = self._process.wait()
        with self._errors_file as file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines()
        self.errors = fault or "; ".join(lines[-_LAST_LINES:])
        self.end.set_result(code)
        if not self.is_in.done():
            self.is_in.set_result(None)

    def close(self) -> None:
        """
        End the login. Processes started through it go on if the host agent was ordered to `keep`.
        """
        with contextlib.suppress(OSError):  # ssh may have ended with orders unread
            self._input.close()
        try:
            self._process.wait(0.0 if self.is_silent else clocks.SSH_KNOCK_S)
        except subprocess.TimeoutExpired:  # that host is gone
            self._process.kill()
            self._process.wait()
