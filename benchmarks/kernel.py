"""
A notebook's kernel that is driven cell by cell and records when each cell began and ended.
"""

import ast
import contextlib
import os
import sys
import threading
import time
from dataclasses import dataclass

import psutil
from jupyter_client.manager import start_new_kernel

# This runs in the kernel, and records when each cell begins and ends, by the monotonic clock.
_CLOCK = """\
import time as _time
_cells = []
def _end(result):
    if _cells:
        _cells[-1].append(_time.monotonic())
get_ipython().events.register("pre_run_cell", lambda info: _cells.append([_time.monotonic()]))
get_ipython().events.register("post_run_cell", _end)
"""
_END_WITHIN_S = 10
_MOST_STARTS = 5  # as many as a Jupyter server's restarts in a row


class BenchmarkFailed(Exception):
    """
    The error of a measurement that did not work, so that there is no time to report.
    """


@dataclass(frozen=True)
class CellResult:
    """
    The result of a cell, seen from outside the kernel.

    Args:
        status: "ok" or "error".
        text: The text that the cell printed.
        error: The error's name and message, or "".
        prompt_s: The time at which the prompt was back, by the monotonic clock.
        stopped_s: The time at which Stop was pressed, by the monotonic clock, or None.
    """

    status: str
    text: str
    error: str
    prompt_s: float
    stopped_s: float | None = None


def _started(env):
    """
    Start a kernel, and return its manager and client.

    The kernel's ports are chosen before the kernel binds them. With thirty learners another process
    may bind one of them in between. Then the kernel is started again with other ports, as a Jupyter
    server does it.
    """
    for start in range(1, _MOST_STARTS + 1):
        try:
            return start_new_kernel(
                kernel_name="python3", env=env, extra_arguments=["--log-level=ERROR"]
            )
        except RuntimeError:  # "Kernel died before replying to kernel_info"
            if start == _MOST_STARTS:
                raise
    raise AssertionError("a loop that returns or raises")


class Kernel:
    """
    A running kernel with its own folder for settings and logs.

    Args:
        folder: An empty folder for IPython's settings and logs.
    """

    def __init__(self, folder):
        env = {**environment(), "IPYTHONDIR": str(folder), "IPP_NONINTERACTIVE": "1"}
        self.manager, self.client = _started(env)
        self.run(_CLOCK)

    def run(self, source, stop_when=None, timeout_s=120):
        """
        Run a cell and wait for the prompt.

        Args:
            source: The cell's text.
            stop_when: Function without arguments. Stop is pressed as soon as it returns True; None:
                Stop is not pressed.
            timeout_s: Seconds to wait before giving up.

        Returns:
            CellResult: The result of the cell.
        """
        text, errors = [], []

        def collect(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                text.append(content["text"])
            elif message["msg_type"] == "error":
                errors.append(f"{content['ename']}: {content['evalue']}")

        stopper = _Stopper(self.manager.interrupt_kernel, stop_when)
        try:
            reply = self.client.execute_interactive(source, timeout=timeout_s, output_hook=collect)
            prompt_s = time.monotonic()
        except TimeoutError:
            raise BenchmarkFailed(f"A cell did not end in {timeout_s} s:\n{source}") from None
        finally:
            stopper.end()
        status = reply["content"]["status"]
        return CellResult(status, "".join(text), "".join(errors), prompt_s, stopper.stopped_s)

    def run_well(self, source):
        """
        Run a cell that must not fail, and return its CellResult.
        """
        result = self.run(source)
        if result.status != "ok":
            raise BenchmarkFailed(f"{result.error or result.status}\nin the cell:\n{source}")
        return result

    def value(self, expression):
        """
        Return the value of an expression in the kernel. The value must be a literal of Python.
        """
        return ast.literal_eval(self.run_well(f"print(repr({expression}))").text.strip())

    def seconds_of(self, *cells):
        """
        Run cells one after another, as Run All does.

        Returns:
            float: Seconds from when the kernel began the first to when it ended the last.
        """
        first = self.value("len(_cells)")  # includes the cell that asks
        for cell in cells:
            self.run_well(cell)
        return self.value(f"_cells[{first + len(cells) - 1}][1] - _cells[{first}][0]")

    @property
    def pid(self):
        """
        The process id of the kernel.
        """
        return self.manager.provisioner.pid

    def close(self):
        """
        End the kernel, and all processes that it started and that still run.
        """
        with ending(self.pid):
            self.client.stop_channels()
            self.manager.shutdown_kernel(now=True)


class _Stopper:
    """
    A thread that presses Stop once, as soon as `stop_when` returns True.
    """

    def __init__(self, press, stop_when):
        self.stopped_s = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(press, stop_when), daemon=True)
        if stop_when is not None:
            self._thread.start()

    def _wait(self, press, stop_when):
        while not self._ended.wait(0.002):
            if stop_when():
                self.stopped_s = time.monotonic()
                press()
                return

    def end(self):
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()


@contextlib.contextmanager
def running_kernel(folder):
    """
    Start a Kernel, yield it, and end it after the block.
    """
    kernel = Kernel(folder)
    try:
        yield kernel
    finally:
        kernel.close()


@contextlib.contextmanager
def ending(pid):
    """
    Wait, after the block, for all processes that a process has started, and kill those that remain.

    Args:
        pid: Id of the process, which the block ends.
    """
    started = psutil.Process(pid).children(recursive=True)
    try:
        yield
    finally:
        _, left = psutil.wait_procs(started, timeout=_END_WITHIN_S)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def environment():
    """
    Return the environment variables with which everything is run that is measured.
    """
    # Without the name of an interface, Gloo looks up the machine's own name. A slow look-up would
    # count against the launchers that do not name an interface.
    return {**os.environ, "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
