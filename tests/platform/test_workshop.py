"""
Tests that the workshop's page agrees with the workshop's files.
"""

import re
import subprocess

import pytest
from paths import ROOT

WORKSHOP = ROOT / "workshop"
PAGE = (WORKSHOP / "README.md").read_text()


class Config(dict):
    """
    A stand-in for a hub's configuration, which stores every setting.
    """

    def __getattr__(self, name):
        return self.setdefault(name, Config())

    def __setattr__(self, name, value):
        self[name] = value


@pytest.fixture
def config():
    """
    Return the settings of the workshop's configuration.
    """
    made, path = Config(), WORKSHOP / "jupyterhub_config.py"
    exec(compile(path.read_text(), path, "exec"), {"get_config": lambda: made})
    return made


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
