"""
Tests of the board as a service of a hub, which a stand-in for the hub starts with the workshop's
own commands: the board ends with its hub, and waits for the board of an earlier hub.
"""

import importlib.util
import json
import subprocess
import sys

import psutil
import pytest
from hub_config import BOARD_LINE, HUB_LINE, load_hub_config
from processes import free_ports
from typer.testing import CliRunner
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.course.classroom.board import serving
from ddp_lessons.course.cli import app

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("jupyterhub") is None
        or importlib.util.find_spec("jupyterhub_idle_culler") is None,
        reason="needs jupyterhub and jupyterhub-idle-culler: workshop/install.sh",
    ),
]
GONE_S = 10.0
_READY = "the board: /services/board/, by the hub"
_WAITS = "the board waits: another board uses"
# The environment of its services has no PATH.
_STAND_IN = """
import json, signal, subprocess, sys
for command, environment in json.loads(sys.argv[1]):
    subprocess.Popen(command, env=environment, start_new_session=True)
signal.pause()
"""


class StandIn:
    """
    A process that starts a hub's services as JupyterHub does. Use it in a `with`.

    Args:
        folder: The hub's working directory.
        name: A name for its log.
        port: The board's port.
    """

    def __init__(self, folder, name, port):
        config = load_hub_config(folder, HUB_LINE, BOARD_LINE)
        self._log = folder / f"{name}.log"
        services = [
            (service["command"], _environment(service, port))
            for service in config.JupyterHub.services
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _STAND_IN, json.dumps(services)],
                cwd=folder, stdout=log, stderr=log,
            )  # fmt: skip
        self._services = []

    def __enter__(self):
        wait_until(lambda: len(self._find_services()) == 2, HANGS_AFTER_S, "both services")
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        for process in self._services:
            if process.is_running():
                process.kill()

    def _find_services(self):
        # setpriv replaces itself by the service.
        found = psutil.Process(self._process.pid).children()
        self._services = [one for one in found if one.cmdline()[:1] == [sys.executable]]
        return self._services

    def wait_for(self, text):
        """
        Wait until a service has printed a text, and return all that the services have printed.
        """
        wait_until(lambda: text in self._log.read_text(), HANGS_AFTER_S, f"{text}: {self._log}")
        return self._log.read_text()

    def kill(self):
        """
        Kill this process by SIGKILL, and return the services that are left some seconds later.
        """
        assert all(service.is_running() for service in self._services)
        self._process.kill()
        self._process.wait()
        return psutil.wait_procs(self._services, GONE_S)[1]


def _environment(service, port):
    return service.get("environment", {}) | {
        "JUPYTERHUB_SERVICE_NAME": service["name"],
        "JUPYTERHUB_SERVICE_PREFIX": f"/services/{service['name']}/",
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        "JUPYTERHUB_CLIENT_ID": f"service-{service['name']}",
        "JUPYTERHUB_API_TOKEN": "t" * 40,
        "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
    }


def test_services_end_with_a_hub_that_is_killed_and_the_next_board_takes_over(
    tmp_path, monkeypatch
):
    """
    The board and the culler of a killed hub end. The next hub's board waits for that, says so once,
    and then listens at the same port. A board that is started by hand does not wait.
    """
    monkeypatch.chdir(tmp_path)
    (port,) = free_ports(1)
    with StandIn(tmp_path, "old", port) as old:
        old.wait_for(_READY)
        monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path))
        refused = CliRunner().invoke(app, ["board", "--port", "0"])
        assert refused.exit_code == 1
        assert "A board is running already" in refused.stderr
        with StandIn(tmp_path, "new", port) as new:
            new.wait_for(_WAITS)
            assert old.kill() == []
            told = new.wait_for(_READY)
            assert told.count(_WAITS) == 1
            assert (tmp_path / "board").stat().st_mode & 0o777 == 0o700
            assert new.kill() == []


def test_a_board_in_a_terminal_of_a_hub_is_no_service(monkeypatch):
    """
    A teacher can start a board by hand in a terminal of JupyterLab under a hub, although the
    hub gives that server some of the variables of a service.
    """
    monkeypatch.delenv("JUPYTERHUB_SERVICE_NAME", raising=False)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/grace/")
    assert not serving.is_service()
    monkeypatch.setenv("JUPYTERHUB_SERVICE_NAME", "board")
    assert serving.is_service()
