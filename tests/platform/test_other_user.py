"""
Tests of another user on the same machine: no overhearing, no silencing, no reading, no squatting.

docs/security.md lists what such a user can still do.
"""

import contextlib
import json
import os
import queue
import re
import shutil
import tempfile
import urllib.request
from pathlib import Path

import pytest
from browser.lab_server import LabServer
from jupyter_client import BlockingKernelClient
from kernels import Kernel, running_kernel
from other_user import OtherUser, reachable
from processes import listening_addresses, marked, new_mark
from waiting import wait_until

pytestmark = [pytest.mark.timeout(300)]

START = "from ddp_lessons import start_ranks\nranks = start_ranks(2, device='cpu', launcher={!r})"
SAY = "print('open ' + 'sesame')"  # the code must not contain the output
SAID = "open sesame"
SUM = "%%px\nimport torch\nimport torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)"
LOOPBACK = {"127.0.0.1", "::1", "0100007F", "0" * 24 + "01000000"}
FEWEST_PORTS = {"auto": 8, "local": 20}
"""
The fewest TCP ports of a session by launcher: those of the server, the kernel and Gloo, and also
the controller's where the supervisor does not start the ranks.
"""
SECRET_KEYS = ("key", "curve_secretkey", "curve_publickey", "curve_serverkey", "token")


class LabKernel(Kernel):
    """
    A kernel that JupyterLab has started, used by a client of the test.
    """

    def __init__(self, server, runtime):
        request = urllib.request.Request(server.address("api/kernels"), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            identity = json.load(answer)["id"]
        path = runtime / f"kernel-{identity}.json"
        self.client = BlockingKernelClient(connection_file=str(path))
        self.client.load_connection_file()
        # on a busy machine a late heartbeat would count as a death
        self.client.start_channels(hb=False)
        wait_until(self._answers, 60, "the kernel to answer")

    def _answers(self):
        self.client.kernel_info()
        with contextlib.suppress(queue.Empty):
            return bool(self.client.get_iopub_msg(timeout=0.2))

    def close(self):
        """
        Disconnect from the kernel, which ends with its server.
        """
        self.client.stop_channels()


class Session:
    """
    A learner with `ddp-lessons lab`, a notebook and two ranks. Before, another user tries to make
    the learner's folders.
    """

    def __init__(self, folder, other):
        self.folder, self.home, self.temporary = folder, folder / "home", folder / "temporary"
        self.home.mkdir(mode=0o755)
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self.squatted = other.make_folders(
            [
                str(self.temporary / f"ddp-lessons-{os.getuid()}"),
                *(str(self.home / name) for name in (".local", ".ipython", "ddp-lessons")),
            ]
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(self.home))
            patch.setenv("TMPDIR", str(self.temporary))
            for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "DDP_LESSONS_RUNTIME_DIR"):
                patch.delenv(name, raising=False)
            self.server = LabServer(folder)
        self.kernel = None

    def open(self):
        """
        Open a notebook's kernel, and start ranks.
        """
        wait_until(self._is_up, 60, "JupyterLab to answer")
        self.kernel = LabKernel(self.server, self.folder / "RUNTIME")
        self.start()

    def _is_up(self):
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(self.server.address("api/status"), timeout=60),
        ):
            return True

    def start(self, launcher="auto"):
        """
        Stop earlier ranks, start new ones, and assert that they print.
        """
        done = self.kernel.run(
            "ranks.stop()\n" * self.has_ranks + START.format(launcher), timeout_s=150
        )
        assert done.status == "ok", done
        self.assert_prints()

    @property
    def has_ranks(self):
        """
        Whether ranks were started before.
        """
        return self.kernel.value("'ranks' in globals()")

    def assert_prints(self):
        """
        Assert that a cell of the kernel and one of its ranks print what they should.
        """
        assert self.kernel.run(SAY).text == f"{SAID}\n"
        assert self.kernel.run(f"%px {SAY}").text == f"[0] {SAID}\n[1] {SAID}\n"
        assert self.kernel.run(f"{SUM}\nprint(x.item())").text == "[0] 2.0\n[1] 2.0\n"

    @property
    def ports(self):
        """
        The TCP ports on which server, kernel, controller and ranks listen.
        """
        return listening_ports(self.server.processes())

    def secrets(self):
        """
        Return every key and token of this session, and the files that hold one.
        """
        found, files = {self.server._token}, set()
        texts = {
            path: path.read_text(errors="replace")
            for path in self.folder.rglob("*")
            if path.is_file() and self.server.course not in path.parents
        }
        for path, text in texts.items():
            if path.suffix == ".json":
                with contextlib.suppress(ValueError):
                    content = json.loads(text)
                    found |= {content[key] for key in SECRET_KEYS if content.get(key)}
        for path, text in texts.items():
            if any(secret in text for secret in found):
                files.add(path)
        return found, files

    def close(self):
        """
        End the kernel's client and the server with its kernels.
        """
        if self.kernel is not None:
            self.kernel.close()
        self.server.kill()


def listening_ports(processes):
    """
    Return the TCP ports on which some processes listen.
    """
    return sorted(
        {
            connection.laddr.port
            for process in processes
            for connection in process.net_connections("tcp")
            if connection.status == "LISTEN"
        }
    )


@pytest.fixture(scope="module")
def other():
    """
    Yield another user. Only root can act as one, so the tests are skipped for others.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can play another user")
    with OtherUser() as user:
        yield user


@pytest.fixture(scope="module")
def session(other):
    """
    Yield a learner's session in a folder that other users can read, as homes are by default.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp-lessons-test-"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder)
        session = Session(folder, other)
        undo.callback(session.close)
        session.open()
        yield session


@pytest.mark.parametrize("launcher", FEWEST_PORTS)
def test_other_user_hears_nothing(session, other, launcher):
    """
    Another user who connects to all ports receives no message: every user can reach loopback, and
    without encryption could read all code and output.
    """
    session.start(launcher)
    ports = session.ports
    assert len(ports) >= FEWEST_PORTS[launcher]
    assert set(ports) <= set(other.ports(os.getuid()))  # the port numbers are public
    assert other.listen(ports) == []
    session.assert_prints()
    assert other.heard() == ""


@pytest.mark.parametrize("launcher", FEWEST_PORTS)
def test_other_user_silences_nobody(session, other, launcher):
    """
    Garbage that another user sends to all ports disturbs no cell: a message queue that fails on it
    would lose all later output.
    """
    session.start(launcher)
    assert other.garbage(session.ports) >= 20 * FEWEST_PORTS[launcher]
    for _ in range(3):
        session.assert_prints()
    assert session.kernel.run("ranks.regroup()").status == "ok"
    session.assert_prints()


def test_other_user_reaches_no_socket_of_the_ranks(session, other):
    """
    Another user cannot connect to the ranks' sockets, because only the owner can enter their
    folder. The owner can connect.
    """
    session.start()
    runtime = Path(session.kernel.value("str(ranks.supervisor.folder)"))
    sockets = [str(path) for path in runtime.iterdir() if path.is_socket()]
    assert len(sockets) >= 10
    assert other.reachable(sockets) == []
    assert reachable(sockets) == sockets
    session.assert_prints()


def test_all_listen_on_loopback_only(session):
    """
    Server, kernel, controller and Gloo listen on loopback only, in IPv4 and IPv6, so that other
    machines cannot connect.
    """
    session.start("local")
    found = {p.pid: listening_addresses(p) for p in session.server.processes()}
    assert len([pid for pid, addresses in found.items() if addresses]) >= 5
    assert {address for addresses in found.values() for _, address in addresses} <= LOOPBACK


def test_other_user_reads_no_secret(session, other):
    """
    Another user cannot read any file with a key or a token, with which they could run code as the
    learner.
    """
    session.start("local")
    secrets, files = session.secrets()
    assert len(secrets) >= 6
    names = " ".join(path.name for path in files)
    for wanted in (r"kernel-.*\.json", r"ipcontroller-.*-client", r"-engine\.json", "jpserver-"):
        assert re.search(wanted, names), wanted
    assert other.readable([str(path) for path in files]) == []
    runtime = Path(session.kernel.value("str(ranks.supervisor.folder)"))
    assert len(list(runtime.iterdir())) >= 3
    assert other.readable([str(runtime), *map(str, runtime.iterdir())]) == []


def test_other_user_learns_command_lines_only(session, other):
    """
    Another user sees only the command lines of processes, which are public on Unix, and they
    contain no key or token.
    """
    secrets, _ = session.secrets()
    pids = [process.pid for process in session.server.processes()]
    assert len(pids) >= 6
    for told in other.processes(pids).values():
        assert list(told) == ["cmdline"]
        assert not any(secret in told["cmdline"] for secret in secrets)


def test_other_user_takes_no_folder(session):
    """
    If another user has made the learner's folder in /tmp, whose name is easy to guess, the runtime
    folder is in the home instead, and ranks start.
    """
    assert session.squatted == [str(session.temporary / f"ddp-lessons-{os.getuid()}")]
    runtime = session.kernel.value("str(ranks.supervisor.folder)")
    assert Path(runtime).is_relative_to(session.home)


WITHOUT_CURVE = """
import ddp_lessons.ranks.kernel.bootstrap as starting
arguments = starting.controller_arguments
starting.controller_arguments = lambda *a: [x for x in arguments(*a) if "enable_curve" not in x]
"""


def test_other_user_hears_and_silences_what_is_not_encrypted(other):
    """
    Without encryption the same user does overhear and silence a session, so the tests above can
    fail. The cell reports the lost output.
    """
    mark = new_mark()
    with running_kernel(**mark) as kernel:
        assert kernel.run(WITHOUT_CURVE + START.format("local")).status == "ok"
        ports = listening_ports(marked(mark))
        assert len(other.listen(ports)) >= 2  # the kernel's, and the controller's
        assert kernel.run(f"%px {SAY}").text == f"[0] {SAID}\n[1] {SAID}\n"
        wait_until(lambda: SAID in other.heard(), 5, "the output to be overheard")
        kernel_ports = {connection.laddr.port for connection in _own(kernel)}
        other.garbage(sorted(set(ports) - kernel_ports))
        silenced = kernel.run(f"%px {SAY}")
        assert silenced.text.startswith("The output of ranks 0 and 1 did not arrive: ")
        assert "call ranks.stop(), then start_ranks()." in silenced.text
        again = "ranks.stop()\nranks = start_ranks(2, device='cpu')"
        assert kernel.run(again).status == "ok"
        assert kernel.run(f"%px {SAY}").text == f"[0] {SAID}\n[1] {SAID}\n"


def _own(kernel):
    import psutil

    return psutil.Process(kernel.pid).net_connections("tcp")
