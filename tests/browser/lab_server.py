"""
A real JupyterLab on a learner's folder, started as `make lab` starts it, and its processes.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request

import psutil
from paths import ROOT
from waiting import comes_true, wait_until

_MARK = "DDP_LESSONS_BROWSER_TEST"  # inherited by every process of one server
_NOT_INHERITED = ("JUPYTER", "IPYTHON", "IPP_", "PYTEST")
_START_S = 60.0
_END_S = 20.0


class LabServer:
    """
    A running JupyterLab that does not use this user's settings, notebooks and kernels.

    Args:
        folder: An empty folder for all files of the server.
    """

    def __init__(self, folder):
        self.course = folder / "course"
        self.notebooks = self.course / "notebooks"
        self._log = folder / "lab.log"
        self._mark = secrets.token_hex()
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)},
            **{f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")},
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_TOKEN": secrets.token_hex(),
            "DDP_LESSONS_STATE_DIR": str(folder / "state"),
            _MARK: self._mark,
        }
        command = [sys.executable, "-m", "ddp_lessons.course.cli", "lab", str(self.course)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--no-browser", "--ServerApp.port=0"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._token = environment["JUPYTER_TOKEN"]
        self._port = self._wait_for_port(folder / "RUNTIME" / f"jpserver-{self.pid}.json")

    def _wait_for_port(self, info):
        ready = comes_true(lambda: info.exists() or self._process.poll() is not None, _START_S)
        if not ready or not info.exists():
            self.kill()
            raise AssertionError(f"JupyterLab did not start:\n{self._log.read_text()}")
        wait_until(lambda: info.read_text().endswith("}"), _START_S, "the server's port")
        return json.loads(info.read_text())["port"]

    @property
    def pid(self):
        """
        Process id of the server.
        """
        return self._process.pid

    def address(self, path="", query=""):
        """
        Return the address of a path of this server, with the token that opens it.
        """
        return f"http://127.0.0.1:{self._port}/{path}?{query}token={self._token}"

    def processes(self):
        """
        Return every living process of this server, itself and detached ones included.
        """
        found = []
        for process in psutil.process_iter():
            try:
                is_alive = process.status() != psutil.STATUS_ZOMBIE
                if is_alive and process.environ().get(_MARK) == self._mark:
                    found.append(process)
            except (psutil.Error, OSError):
                continue  # another user's process, or it has ended
        return found

    def rank_processes(self):
        """
        Return every living rank, controller and supervisor of this server's kernels.
        """
        found = []
        for process in self.processes():
            try:
                if any("ddp_lessons.ranks" in word for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue  # it has ended meanwhile
        return found

    def is_alone(self):
        """
        Return whether all processes of this server but the server itself have ended.
        """
        return [process.pid for process in self.processes()] == [self.pid]

    def end_kernels(self):
        """
        End every kernel, as closing its notebook does.
        """
        for session in json.loads(self._ask("GET", "api/sessions")):
            self._ask("DELETE", f"api/sessions/{session['id']}")

    def _ask(self, method, path):
        request = urllib.request.Request(self.address(path), method=method)
        with urllib.request.urlopen(request, timeout=_END_S) as answer:
            return answer.read()

    def stop(self, signum=signal.SIGTERM, within_s=_END_S):
        """
        Send a signal to the server, wait for the end of all its processes, and kill the rest.

        Args:
            signum: The signal.
            within_s: Seconds to wait.

        Returns:
            list: The processes that had to be killed.
        """
        self._process.send_signal(signum)
        left = [] if self.has_ended(within_s) else self.processes()
        self.kill()
        return left

    def has_ended(self, within_s):
        """
        Wait for the end of all processes of this server, and return whether it came within a time.
        """
        return comes_true(
            lambda: self._process.poll() is not None and not self.processes(), within_s
        )

    def kill(self):
        """
        Kill all processes of this server that still run.
        """
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                process.kill()
        self._process.wait()
