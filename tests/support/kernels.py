"""
A real IPython kernel, driven as a notebook drives one: cells, Stop, restart, kill.
"""

import contextlib
import os
import queue
import time
from dataclasses import dataclass

from waiting import HANGS_AFTER_S

from ddp_lessons.course.building.kernels import start_kernel


@dataclass(frozen=True)
class CellResult:
    """
    The result of a cell.

    `seconds` is the time until the prompt was back. `late_s` is the largest delay between the time
    at which Stop should have been pressed and the time at which it was.
    """

    status: str
    text: str
    ename: str
    evalue: str
    seconds: float
    late_s: float = 0.0


class Kernel:
    """
    A running kernel. Its arguments are environment variables; None removes one.
    """

    def __init__(self, **environment):
        env = {**os.environ, "IPP_NONINTERACTIVE": "1", **environment}
        env = {name: value for name, value in env.items() if value is not None}
        self.manager, self.client = start_kernel(env=env)

    def run(self, source, stop_after_s=(), timeout_s=HANGS_AFTER_S, stop_at=None):
        """
        Run a cell and return its CellResult.

        Presses Stop at each time of `stop_after_s`, in seconds after the cell's start, and when the
        cell has printed the text `stop_at`.
        """
        text, error = [], {"ename": "", "evalue": ""}

        def collect(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                text.append(content["text"])
            elif message["msg_type"] == "error":
                error.update(content)
            elif message["msg_type"] in ("display_data", "execute_result"):
                text.append(content["data"].get("text/plain", "") + "\n")

        began = time.monotonic()
        stops, late_s = [], 0.0
        request = self.client.execute(source)
        idle = False
        while not idle:
            if time.monotonic() - began > timeout_s:
                printed = "".join(text) or "nothing"
                raise TimeoutError(
                    f"cell did not end in {timeout_s} s: {source!r}\nit printed: {printed}"
                )
            if stops and time.monotonic() >= stops[0]:
                late_s = max(late_s, time.monotonic() - stops.pop(0))
                self.manager.interrupt_kernel()
            try:
                message = self.client.get_iopub_msg(timeout=0.02)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "execute_input":  # a kernel ignores Stop until then
                stops = sorted(time.monotonic() + after_s for after_s in stop_after_s)
            collect(message)
            if stop_at is not None and any(stop_at in part for part in text):
                stop_at = None
                self.manager.interrupt_kernel()
            idle = message["content"].get("execution_state") == "idle"
        reply = self.client.get_shell_msg(timeout=HANGS_AFTER_S)
        while (
            reply["parent_header"].get("msg_id") != request
        ):  # it answers a request of the start-up
            reply = self.client.get_shell_msg(timeout=HANGS_AFTER_S)
        seconds = time.monotonic() - began
        return CellResult(
            reply["content"]["status"],
            "".join(text),
            error["ename"],
            error["evalue"],
            seconds,
            late_s,
        )

    def value(self, expression):
        """
        Return the value of an expression in the kernel. Its `repr` must be a Python literal.
        """
        import ast

        result = self.run(f"print(repr({expression}))")
        assert result.status == "ok", result
        return ast.literal_eval(result.text.strip())

    @property
    def pid(self):
        """
        The process id of the kernel.
        """
        return self.manager.provisioner.pid

    def close(self):
        """
        End the kernel.
        """
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextlib.contextmanager
def running_kernel(**environment):
    """
    Give a kernel that ends with the block.
    """
    kernel = Kernel(**environment)
    try:
        yield kernel
    finally:
        kernel.close()
