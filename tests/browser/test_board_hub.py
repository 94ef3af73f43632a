"""
A test of the board as a service of a real JupyterHub, which identifies its readers and senders.
"""

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from paths import ROOT
from playwright.sync_api import expect
from processes import free_ports
from waiting import wait_until

START_S = 90.0
PATIENCE_MS = 60_000
_MARK = "TEST_OF_A_BOARD_UNDER_A_HUB"  # inherited by the hub's proxy and by the board

expect.set_options(timeout=PATIENCE_MS)
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("jupyterhub") is None
        or shutil.which("configurable-http-proxy") is None,
        reason="needs jupyterhub, and npm's configurable-http-proxy",
    ),
]
CONFIG = """
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = "{password}"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.Spawner.cmd = {learner!r}
c.Spawner.environment = {{
    "DDP_LESSONS_BOARD_URL": "http://127.0.0.1:{port}/services/board",
    "DDP_LESSONS_STATE_DIR": lambda spawner: "{folder}/" + spawner.user.name,
    "PYTHONPATH": "{root}",
}}
c.JupyterHub.services = [
    {{
        "name": "board",
        "url": "http://127.0.0.1:{board_port}",
        "command": {board!r},
        "environment": {{"DDP_LESSONS_STATE_DIR": "{folder}/board", "PYTHONPATH": "{root}"}},
        "oauth_no_confirm": True,
    }},
    {{"name": "tester", "api_token": "{token}"}},
]
c.JupyterHub.load_roles = [
    {{
        "name": "teacher",
        "scopes": ["access:services!service=board"],
        "users": ["grace"],
    }},
    {{"name": "tester", "scopes": ["admin:users", "admin:servers"], "services": ["tester"]}},
]
"""


class Hub:
    """
    A JupyterHub with the board as its service. Use it in a `with`.

    Args:
        folder: The folder for its files.
    """

    def __init__(self, folder):
        self.folder, self.password = folder, secrets.token_hex(8)
        self._token = secrets.token_hex(16)
        names = ("port", "hub_port", "proxy_port", "board_port")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.url = f"http://127.0.0.1:{ports['port']}"
        self._board_port = ports["board_port"]
        text = CONFIG.format(
            **ports,
            folder=folder,
            root=ROOT,
            password=self.password,
            token=self._token,
            learner=[sys.executable, str(Path(__file__).with_name("hub_learner.py"))],
            board=[sys.executable, "-m", "ddp_lessons.course.cli", "board"],
        )
        (folder / "config.py").write_text(text)
        self.log = folder / "hub.log"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "DDP_"))}
        self._mark = kept[_MARK] = secrets.token_hex()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(folder / "config.py")],
                cwd=folder, env=kept, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def __enter__(self):
        try:
            wait_until(self._is_up, START_S, f"the hub and its board: {self.log}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
        for process in self._left():  # each runs in a system session of its own
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def _left(self):
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
        return found

    def _is_up(self):
        assert self._process.poll() is None, self.log.read_text()[-5000:]
        try:
            # Try the board's port first: requests for a service that does not run yet slow down the
            # hub.
            socket.create_connection(("127.0.0.1", self._board_port), timeout=5).close()
            with urllib.request.urlopen(f"{self.url}/services/board/page/board.js", timeout=5):
                return True
        except OSError:
            return False

    def ask(self, method, path, told=None):
        """
        Send a request to the hub's API, and return its status.

        Args:
            method: The HTTP method.
            path: The path below the API's address.
            told: The request's JSON content, or None.
        """
        request = urllib.request.Request(
            f"{self.url}/hub/api/{path}",
            data=None if told is None else json.dumps(told).encode(),
            method=method,
            headers={"Authorization": f"token {self._token}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status

    def put_row(self, token):
        """
        Send a state to the board with a token, and return the status.
        """
        told = {"state": {"version": 2, "tasks": {}, "predictions": {}}, "sent_s": 1}
        request = urllib.request.Request(
            f"{self.url}/services/board/api/row",
            data=json.dumps(told).encode(),
            method="PUT",
            headers={"Authorization": f"token {token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@pytest.fixture
def hub(tmp_path):
    """
    Yield a running hub.
    """
    with Hub(tmp_path) as found:
        yield found


@pytest.fixture
def log_in(chromium, hub):
    """
    Yield a function that logs in as a user, by name, and returns that user's page of the board.
    """
    contexts = []

    def make(name):
        contexts.append(chromium.new_context())
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{hub.url}/services/board/")
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill(hub.password)
        page.get_by_role("button", name="Sign in").click()
        return page

    yield make
    for context in contexts:
        context.close()


def rows_of(page):
    """
    Return the rows that a page of the board shows.
    """
    return page.evaluate("shown.rows")


def test_learners_of_a_hub_are_on_the_board_and_their_teacher_sees_it(hub, log_in):
    """
    Learners of a hub are on the board without joining, because the configuration names the board
    and the hub's tokens identify them. Only the teacher can see it and remove rows.
    """
    page = log_in("grace")
    expect(page.locator("#state")).to_have_text("0 on the board")
    for name in ("ada", "bo"):
        hub.ask("POST", f"users/{name}")
        hub.ask("POST", f"users/{name}/server")
    expect(page.locator("#state")).to_have_text("2 on the board")
    expect(page.locator("tbody th")).to_have_text(["ada", "Bo and Cy (login bo)"])
    page.get_by_label("Lesson").select_option("00_ranks")
    expect(page.locator("td.tried")).to_have_text(["1 all-items"] * 2)
    expect(page.locator("#join")).to_be_hidden()
    for token in ("", "x" * 40, hub._token):  # the last token is a service's
        assert hub.put_row(token) == 403
    expect(page.locator("#state")).to_have_text("2 on the board")

    page.get_by_role("button", name="Remove ada").click()
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator("tbody th")).to_have_text(["Bo and Cy (login bo)"])
    (key,) = (row["key"] for row in rows_of(page))
    for one in (page, log_in("cy")):  # without the cookie's XSRF token
        asked = one.request.delete(f"{hub.url}/services/board/rows/{key}")
        assert asked.status == 403
    expect(page.locator("#state")).to_have_text("1 on the board")

    other = log_in("ada")
    expect(other.get_by_role("heading", name="You do not have permission")).to_be_visible()
    assert "all-items" not in other.content()
    assert other.request.get(f"{hub.url}/services/board/board.csv").status == 403
    assert other.request.get(f"{hub.url}/services/board/events").status == 403
    assert page.request.get(f"{hub.url}/services/board/board.csv").ok
