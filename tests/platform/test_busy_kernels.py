"""
Tests that a kernel that is busy counts as activity of a learner's server, which a hub does not stop
then, and that it does so for some hours only.
"""

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from jupyter_client import BlockingKernelClient
from waiting import wait_until

from ddp_lessons.course import busy_kernels
from ddp_lessons.course.busy_kernels import BusyKernels
from ddp_lessons.course.learner.lab import lab_environment
from ddp_lessons.errors import BadInput

HOURS = "DDP_LESSONS_BUSY_HOURS"
MAX_BUSY_S = 5
SILENT = "from pathlib import Path\nPath('began').touch()\nwhile True: pass"
SERVER = """
import sys
from jupyter_server.serverapp import ServerApp
from ddp_lessons.course import busy_kernels
busy_kernels.LOOK_EVERY_S = 0.1
ServerApp.launch_instance(sys.argv[1:])
"""


class Kernels(dict):
    """
    A stand-in for a server's kernel manager: {kernel id: execution state}.
    """

    def list_kernel_ids(self):
        """
        Return the ids of all kernels.
        """
        return list(self)

    def get_kernel(self, name):
        """
        Return a kernel with its state.
        """
        return SimpleNamespace(execution_state=self[name])


def test_busy_kernel_is_activity_up_to_an_age():
    """
    A busy kernel is activity until it is too old, whatever idle kernels there are: a cell that
    never ends must not keep a server for ever.
    """
    kernels = Kernels(a="idle", b="starting")
    busy = BusyKernels(kernels, max_busy_s=100)
    assert not busy.has_activity(0)
    kernels["a"] = "busy"
    assert [busy.has_activity(now) for now in (10, 70, 109, 110, 500)] == [True] * 3 + [False] * 2
    kernels["b"] = "busy"
    assert busy.has_activity(510)


def test_age_begins_anew_when_a_kernel_was_idle_or_is_gone():
    """
    A kernel that was idle in between has an age of its own for its next cell, and kernels that are
    shut down are forgotten.
    """
    kernels = Kernels(a="busy")
    busy = BusyKernels(kernels, max_busy_s=100)
    assert busy.has_activity(0)
    assert not busy.has_activity(200)
    kernels["a"] = "idle"
    assert not busy.has_activity(260)
    kernels["a"] = "busy"
    assert busy.has_activity(320)
    del kernels["a"]
    assert not busy.has_activity(330)


def test_nothing_is_watched_without_a_hub(monkeypatch):
    """
    Without the hub's variable the server is not touched; a value that is no number is refused.
    """
    monkeypatch.delenv(HOURS, raising=False)
    busy_kernels._load_jupyter_server_extension(server=None)
    monkeypatch.setenv(HOURS, "long")
    with pytest.raises(BadInput, match=HOURS):
        busy_kernels._load_jupyter_server_extension(server=None)


class Server:
    """
    A Jupyter server with the course's settings, as below a hub.

    Args:
        folder: An empty folder for its files.
    """

    def __init__(self, folder):
        self._token, self._runtime = "open-sesame", folder / "runtime"
        self._client = None
        environment = lab_environment(dict(os.environ)) | {
            HOURS: str(MAX_BUSY_S / 3600),
            "JUPYTER_RUNTIME_DIR": str(self._runtime),
            "JUPYTER_TOKEN": self._token,
        }
        words = ["--no-browser", "--allow-root", "--port=0", f"--ServerApp.root_dir={folder}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *words],
            cwd=folder,
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        info = self._runtime / f"jpserver-{self._process.pid}.json"
        wait_until(lambda: info.exists() and info.read_text().endswith("}"), 60, "the server")
        self._url = json.loads(info.read_text())["url"]
        wait_until(self._answers, 60, "the server to answer")  # it listens only after that

    def _answers(self):
        with contextlib.suppress(urllib.error.URLError):
            return bool(self.ask("api/status"))

    def ask(self, path, method="GET"):
        """
        Return the server's answer to a request.
        """
        request = urllib.request.Request(f"{self._url}{path}?token={self._token}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def last_activity(self):
        """
        Return the time that the server reports to a hub as that of its last activity.
        """
        return datetime.fromisoformat(self.ask("api/status")["last_activity"])

    def run(self, source):
        """
        Start a kernel, and send it a cell as soon as the server hears the kernel. A message that
        the kernel sends before is lost, such as the one that says that it is busy.
        """
        name = self.ask("api/kernels", "POST")["id"]
        path = self._runtime / f"kernel-{name}.json"
        self._client = BlockingKernelClient(connection_file=str(path))
        self._client.load_connection_file()
        self._client.start_channels(hb=False)
        wait_until(self._hears_kernel, 60, "the server to hear the kernel")
        self._client.execute(source)

    def _hears_kernel(self):
        self._client.kernel_info()  # the kernel says that it is busy, then idle
        return self.kernel_state() == "idle"

    def kernel_state(self):
        """
        Return the state of the only kernel, as the server knows it.
        """
        (kernel,) = self.ask("api/kernels")
        return kernel["execution_state"]

    def close(self):
        """
        Disconnect from the kernel, and end the server with it.
        """
        if self._client is not None:
            self._client.stop_channels()
        self._process.terminate()
        self._process.wait(60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a hub for a room runs on Linux")
def test_silent_cell_is_activity_of_a_real_server(tmp_path):
    """
    A cell that prints nothing is activity of a Jupyter server with the course's settings, and stops
    being so when it is too old. Jupyter alone counts the cell's beginning and its end only.
    """
    server = Server(tmp_path)
    try:
        server.run(SILENT)
        wait_until(lambda: (tmp_path / "began").exists(), 60, "the cell to begin")
        began = datetime.fromtimestamp((tmp_path / "began").stat().st_mtime, UTC)
        seconds = MAX_BUSY_S / 2
        wait_until(
            lambda: (server.last_activity() - began).total_seconds() > seconds, 60, "activity"
        )
        wait_until(
            lambda: (datetime.now(UTC) - server.last_activity()).total_seconds() > seconds,
            60,
            "the cell to be too old",
        )
        assert server.kernel_state() == "busy"
    finally:
        server.close()
