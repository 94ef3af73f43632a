"""
Tests that the workshop's page agrees with the workshop's files.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_config import BOARD_LINE, HUB_LINE, WORKSHOP, load_hub_config

PAGE = (WORKSHOP / "README.md").read_text()


@pytest.fixture
def config(tmp_path):
    """
    Return the settings of the workshop's configuration.
    """
    return load_hub_config(tmp_path, HUB_LINE)


def test_page_s_bounds_are_those_of_the_configuration(config):
    """
    The limits on the page are those of the configuration, because a teacher plans with the page.
    """
    environment = config.Spawner.environment
    assert len(environment) == 3
    for name, value in environment.items():
        assert f"`{name}`, {value} |" in PAGE
    (culler,) = config.JupyterHub.services
    assert f"`c.Spawner.mem_limit`, {config.Spawner.mem_limit} |" in PAGE
    assert "--timeout=7200" in culler["command"]
    assert "two hours, in the configuration" in PAGE


def test_one_line_adds_the_board(tmp_path):
    """
    One line below the workshop's settings adds the board, changes nothing else, and lets a teacher
    still change single settings. The services' commands need no PATH.
    """
    own = 'c.Spawner.environment["DDP_LESSONS_PARK_AFTER"] = "20"'
    config = load_hub_config(tmp_path, HUB_LINE, BOARD_LINE, own)
    hub, environment = config.JupyterHub, config.Spawner.environment
    assert [service["name"] for service in hub.services] == ["idle-culler", "board"]
    roles = hub.load_roles.get_value([])
    assert [role["name"] for role in roles] == ["idle-culler", "board"]
    assert roles[1]["scopes"] == ["access:services!service=board"]
    for service in hub.services:
        assert service["command"][:4] == ["setpriv", "--pdeathsig=TERM", sys.executable, "-m"]
    assert hub.services[1]["environment"] == {"DDP_LESSONS_STATE_DIR": str(Path.cwd())}
    before = load_hub_config(tmp_path, HUB_LINE).Spawner.environment
    address = environment.pop("DDP_LESSONS_BOARD_URL")
    assert environment == before | {"DDP_LESSONS_PARK_AFTER": "20"}
    for base in ("/", "/school/"):
        server = SimpleNamespace(hub=SimpleNamespace(base_url=f"{base}hub/"))
        assert address(server) == f"http://127.0.0.1:585{base}services/board"


def test_boards_port_is_changed_in_one_place(tmp_path):
    """
    A teacher whose server uses the board's port names another one once: learners send there, too.
    """
    own = 'c.JupyterHub.services[-1]["url"] = "http://127.0.0.1:586"'
    environment = load_hub_config(tmp_path, HUB_LINE, BOARD_LINE, own).Spawner.environment
    server = SimpleNamespace(hub=SimpleNamespace(base_url="/hub/"))
    address = environment["DDP_LESSONS_BOARD_URL"](server)
    assert address == "http://127.0.0.1:586/services/board"


@pytest.mark.skipif(importlib.util.find_spec("jupyterhub") is None, reason="needs jupyterhub")
def test_hub_refuses_the_boards_line_above_the_other_one(tmp_path):
    """
    The line of the board must be the second one: the other order would lose the board silently, so
    the hub does not start then, and names the service.
    """
    load_hub_config(tmp_path, BOARD_LINE, HUB_LINE)
    code = (
        "import asyncio; from jupyterhub.app import JupyterHub; "
        "asyncio.run(JupyterHub.instance().initialize(['--config=ddp-hub.py']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "service board in role board" in done.stderr


def test_page_links_to_files_that_exist():
    """
    The page links only to files that exist.
    """
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", PAGE)
    assert "jupyterhub_config.py" in links
    assert [link for link in links if not (WORKSHOP / link).exists()] == []


def test_service_runs_what_the_page_has_made():
    """
    The service and the page name the same folders and the same file of the teacher's.
    """
    service = (WORKSHOP / "ddp-hub.service").read_text()
    for path in ("/srv/ddp-lessons", "/etc/ddp-hub.py", "/var/lib/ddp-hub"):
        assert path in service
        assert path in PAGE


@pytest.mark.parametrize(
    "words", [[], ["add"], ["add", "0"], ["add", "100"], ["remove", "-1"], ["drop", "3"]]
)
def test_learners_refuses_what_it_does_not_know(words):
    """
    `learners.sh` refuses wrong arguments before it does anything: half of a list of users would be
    worse than none.
    """
    done = subprocess.run([WORKSHOP / "learners.sh", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a number from 1 to 99 expected" in done.stderr


@pytest.mark.parametrize("name", ["install.sh", "learners.sh"])
def test_scripts_are_bash(name):
    """
    The scripts are valid bash: a syntax error would otherwise appear on a teacher's server.
    """
    subprocess.run(["bash", "-n", WORKSHOP / name], check=True)
