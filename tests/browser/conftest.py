"""
Fixtures with a browser, a JupyterLab server and a JupyterHub, for tests that act as learners do.
"""

import os
import shutil
import tempfile
import zlib
from pathlib import Path

import pytest
from hub_server import HubServer, Seat, add_users, remove_users, why_not
from lab_page import HEIGHT, WIDTH, LabPage
from lab_server import LabServer
from playwright.sync_api import sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_NUM_LEARNERS = 3
_ARGUMENTS = (
    "--no-sandbox",  # containers allow no sandbox; the pages are our own
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def chromium():
    """
    Yield this machine's browser. Without one, skip the test on a developer's machine and fail it in
    CI.
    """
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        missing = "needs Chromium; on Debian: apt-get install chromium"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def make_server(chromium, tmp_path_factory):
    """
    Yield a function that starts a JupyterLab server. After the test all servers are killed.
    """
    servers = []

    def make():
        servers.append(LabServer(tmp_path_factory.mktemp("lab")))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def shared_server(chromium, tmp_path_factory):
    """
    Yield a JupyterLab server that most tests share, one after the other.
    """
    server = LabServer(tmp_path_factory.mktemp("lab"))
    try:
        yield server
        assert server.stop() == []
    finally:
        server.kill()


@pytest.fixture
def new_page(chromium):
    """
    Yield a function that opens a new page of a server, with its own cookies and storage.
    """
    contexts = []

    def make(server):
        contexts.append(chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}))
        return LabPage(contexts[-1].new_page(), server)

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def lab(new_page, shared_server):
    """
    Yield a page of the shared server, whose kernels are ended after the test.
    """
    yield new_page(shared_server)
    shared_server.end_kernels()


@pytest.fixture(scope="module")
def hub(chromium, request):
    """
    Yield a hub for all tests of a module, whose HUB_SETTINGS are added to the hub's configuration.
    """
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ddp-hub-") as folder:
        Path(folder).chmod(0o755)
        hub = HubServer(Path(folder), getattr(request.module, "HUB_SETTINGS", ""))
        try:
            yield hub
        finally:
            hub.kill()


@pytest.fixture
def seats(hub, request):
    """
    Yield the Seats of three learners, or of a module's NUM_LEARNERS, who are users of this system
    during the test.
    """
    room = f"ddp-{zlib.crc32(request.node.name.encode()):08x}-"  # user names must be short
    passwords = add_users(getattr(request.module, "NUM_LEARNERS", _NUM_LEARNERS), room)
    try:
        yield [Seat(hub, name, password) for name, password in passwords.items()]
    finally:
        remove_users(list(passwords))


@pytest.fixture
def pages(chromium):
    """
    Yield a function that opens a page for a Seat, in that learner's own browser context.
    """
    contexts = []

    def make(seat):
        contexts.append(chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}))
        return LabPage(contexts[-1].new_page(), seat)

    yield make
    for context in contexts:
        context.close()
