"""
A real JupyterHub with the workshop's own configuration, its processes, and users of this system.

Only root can start it. Its users are made for a test, and then removed with their files.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil
from paths import ROOT
from processes import free_ports
from waiting import comes_true, wait_until

from ddp_lessons.course.doctor.machine import others_stop_at

WORKSHOP = ROOT / "workshop"
_START_S = 60.0
_END_S = 20.0
_CONFIG = """
load_subconfig({config!r})
c.Spawner.environment["DDP_LESSONS_MAX_PROCESSES"] = "{most_processes}"
c.Spawner.mem_limit = "2G"
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
"""
MOST_PROCESSES = 400


def why_not():
    """
    Return the reason why no hub with users of this system can run here, or "".
    """
    if os.geteuid() != 0:
        return "only root can make users"
    if shutil.which("configurable-http-proxy") is None:
        return "needs configurable-http-proxy: workshop/install.sh"
    for name in ("jupyterhub", "jupyterhub_idle_culler", "nbgitpuller"):
        if not Path(sysconfig.get_path("purelib"), name).is_dir():
            return f"needs {name}: workshop/install.sh"
    if place := others_stop_at(sysconfig.get_path("purelib"), ROOT / "ddp_lessons"):
        return f"other users cannot pass {place}"
    if _python_for_all() is None:
        return "no Python of this version that other users can run"
    return ""


def _python_for_all():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        if Path(path).exists() and not others_stop_at(path):
            return path
    return None


def make_environment(folder, course=ROOT):
    """
    Make an environment that every user can run, and return its Python.

    It uses the packages of our environment. Only its interpreter differs, if ours is for root only.

    Args:
        folder: The environment's folder.
        course: The folder with the package, and so the course that learners get.
    """
    subprocess.run([_python_for_all(), "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(f"{course}\n{sysconfig.get_path('purelib')}\n")
    ours = Path(sysconfig.get_path("data"))
    for name in ("share/jupyter", "etc/jupyter"):  # JupyterLab's pages, and its extensions
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(ours / name)
    command = folder / "bin" / "ddp-lessons"
    command.write_text(
        f"#!{folder}/bin/python\nfrom ddp_lessons.course.cli import app\napp()\n", encoding="utf-8"
    )
    command.chmod(0o755)
    return folder / "bin" / "python"


def add_users(number, room):
    """
    Make users as the page tells a teacher to, and return {name: password}.

    Args:
        number: Number of users.
        room: The beginning of their names. It must be new for each test, because a hub remembers
            its users.
    """
    done = _learners("add", number, room)
    return dict(line.split() for line in done.stdout.splitlines())


def remove_users(names):
    """
    End all processes of some users, and remove the users with their homes.
    """
    for process in (process for name in names for process in processes_of(name)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: not any(map(processes_of, names)), _END_S, "the users' processes to end")
    _learners("remove", len(names), names[0].rstrip("0123456789"))


def _learners(what, number, room):
    command = [str(WORKSHOP / "learners.sh"), what, str(number), room]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def processes_of(name):
    """
    Return the living processes of a user.
    """
    uid, found = pwd.getpwnam(name).pw_uid, []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == uid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class HubServer:
    """
    A running hub.

    Args:
        folder: A folder that all users can enter, for the environment and the hub's own files.
        more: Further lines of the configuration, with a place for a free port, `{more_port}`.
        course: The folder of the course that learners get.

    Attributes:
        python: The Python of the hub's environment.
    """

    def __init__(self, folder, more="", course=ROOT):
        self.folder = folder
        self.python = make_environment(folder / "environment", course)
        self._state = folder / "hub"
        self._state.mkdir(mode=0o700)
        self._log = self._state / "hub.log"
        self.port, hub_port, api_port, more_port = free_ports(4)
        self._config = self._state / "config.py"
        self._config.write_text(
            (_CONFIG + more).format(
                config=str(WORKSHOP / "jupyterhub_config.py"), port=self.port, hub_port=hub_port,
                api_port=api_port, more_port=more_port, most_processes=MOST_PROCESSES,
            )
        )  # fmt: skip
        self._process = None
        self.start()

    def start(self):
        """
        Start the hub with its stored state, and wait until it answers.
        """
        taken = ("JUPYTER", "IPYTHON", "IPP_", "PYTEST", "DDP_LESSONS", "PYTHON", "VIRTUAL_ENV")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(taken)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.python, "-m", "jupyterhub", f"--config={self._config}"],
                cwd=self._state,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        ready = comes_true(lambda: self._process.poll() is not None or self.answers(), _START_S)
        if not ready or self._process.poll() is not None:
            self.kill()
            raise AssertionError(f"The hub did not start:\n{self.log()}")

    def answers(self):
        """
        Return whether the hub answers through its proxy.
        """
        with contextlib.suppress(OSError, urllib.error.URLError):
            address = f"http://127.0.0.1:{self.port}/hub/health"
            with urllib.request.urlopen(address, timeout=5) as answer:
                return answer.status == 200
        return False

    def log(self):
        """
        Return the text of the log of the hub and the learners' servers.
        """
        return self._log.read_text(errors="replace")

    @property
    def pid(self):
        """
        Process id of the hub.
        """
        return self._process.pid

    def proxy(self):
        """
        Return the proxy's process, or None. It may have outlived the hub that started it.
        """
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if (
                    any("configurable-http-proxy" in word for word in words)
                    and str(self.port) in words
                ):
                    return process
        return None

    def kill(self):
        """
        Kill the hub and all processes that it has started, except for the learners' servers.
        """
        self.kill_hub()  # first, because it would replace a killed proxy
        while (proxy := self.proxy()) is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                proxy.kill()
            psutil.wait_procs([proxy], timeout=_END_S)
        for process in self.services():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_hub(self):
        """
        Kill the hub itself by SIGKILL, as the system does when memory runs out.
        """
        self._process.kill()
        self._process.wait()

    def services(self):
        """
        Return the processes of the hub's services. They end after the hub, but not at once.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                is_ours = str(self.python.parent) in " ".join(process.cmdline())
                if is_ours and process.uids().real == 0 and process.pid != self._process.pid:
                    found.append(process)
        return found


@dataclass(frozen=True)
class Seat:
    """
    A learner's account on a hub, which a LabPage can use as its server.

    Args:
        hub: The HubServer.
        name: The learner's name.
        password: The learner's password.
    """

    hub: HubServer
    name: str
    password: str

    @property
    def home(self):
        """
        The learner's home.
        """
        return Path(pwd.getpwnam(self.name).pw_dir)

    @property
    def course(self):
        """
        The learner's copy of the course.
        """
        return self.home / "my-course"

    @property
    def notebooks(self):
        """
        The folder of the learner's lessons.
        """
        return self.course / "notebooks"

    def address(self, path="", query=""):
        """
        Return the address of a path of this learner's server. The cookie of the login opens it.
        """
        return f"http://127.0.0.1:{self.hub.port}/user/{self.name}/{path}?{query}"

    def log_in(self, page, to=""):
        """
        Log in on the hub's page.

        Args:
            page: Playwright's page.
            to: The path, below the hub's address, of the link that the learner has clicked.
        """
        page.goto(f"http://127.0.0.1:{self.hub.port}/{to}")
        page.locator("#username_input").fill(self.name)
        page.locator("#password_input").fill(self.password)
        page.locator("#login_submit").click()

    def stop_server(self, page):
        """
        Stop the learner's server on the hub's page.

        Args:
            page: Playwright's page.
        """
        page.goto(f"http://127.0.0.1:{self.hub.port}/hub/home")
        page.locator("#stop").click()
        page.locator("#stop").wait_for(state="hidden")
