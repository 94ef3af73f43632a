"""
Tests that ranks end with their kernel, however it ends, leave nothing, and stay private.
"""

import os
import signal
import stat

import pytest
from kernels import Kernel
from processes import is_running, listening_addresses, marked, new_mark, wait_until_gone
from waiting import wait_until

pytestmark = [pytest.mark.timeout(180)]

GONE_S = 20.0
LOOPBACK = {"127.0.0.1", "0100007F"}  # 127.0.0.1 as psutil writes it, and as /proc does
START = "from ddp_lessons.ranks import start_ranks\nranks = start_ranks({}, device='cpu')"
ALL_REDUCE = """%%px
import torch
import torch.distributed as dist
t = torch.ones(())
dist.all_reduce(t)
print(t.item())
"""


class Session:
    """
    A kernel with ranks, and the processes and files that belong to it.
    """

    def __init__(self, folder, num_ranks=2, start=START):
        self.mark = new_mark()
        self.runtime, self.ipython = folder / "runtime", folder / "ipython"
        self.kernel = Kernel(
            DDP_LESSONS_RUNTIME_DIR=str(self.runtime), IPYTHONDIR=str(self.ipython), **self.mark
        )
        result = self.kernel.run(start.format(num_ranks))
        assert result.status == "ok", result
        assert self.kernel.run(ALL_REDUCE).text.splitlines() == [
            f"[{rank}] {num_ranks:.1f}" for rank in range(num_ranks)
        ]
        self.supervisor_pid = self.kernel.value("ranks.supervisor.supervisor_pid")
        self.controller_pid = self.kernel.value("ranks.supervisor.controller_pid")
        self.rank_pids = list(self.kernel.value("ranks.supervisor.pids").values())

    def helpers(self):
        """
        Return all processes of this session but the kernel: supervisor, controller, ranks, their
        children.
        """
        return marked(self.mark, but=(self.kernel.pid,))

    def files(self):
        """
        Return the files of these ranks, in the runtime folder and in ipyparallel's profile.
        """
        made = list(self.runtime.rglob("*")) if self.runtime.exists() else []
        return made + [path for path in self.ipython.rglob("*") if "ddp-lessons" in path.name]

    def assert_nothing_left(self, but_files=False):
        """
        Assert that processes and files are gone within GONE_S.
        """
        but = (self.kernel.pid,) if is_running(self.kernel.pid) else ()
        wait_until_gone(self.mark, GONE_S, but)
        if not but_files:
            wait_until(lambda: not self.files(), GONE_S, f"files to go: {self.files()}")

    def close(self):
        """
        End the kernel, and kill every process of this session that is left.
        """
        self.kernel.close()
        for process in marked(self.mark):
            process.kill()


@pytest.fixture
def session(tmp_path):
    """
    Yield a session with two ranks.
    """
    session = Session(tmp_path)
    yield session
    session.close()


def test_session_is_private(session):
    """
    Other users of a shared server can reach nothing: the only ports are Gloo's, on loopback, and no
    file is readable for others.
    """
    processes = session.helpers()
    pids = {process.pid for process in processes}
    assert {session.supervisor_pid, session.controller_pid, *session.rank_pids} <= pids
    addresses = {process.pid: listening_addresses(process) for process in processes}
    for rank_pid in session.rank_pids:  # Gloo always listens: no address here means a blind test
        assert addresses[rank_pid]
    assert addresses[session.controller_pid] == addresses[session.supervisor_pid] == set()
    assert {address for found in addresses.values() for _, address in found} == LOOPBACK
    files = session.files()
    assert {path.name.rpartition(".")[2] for path in files} >= {"json", "log", "stack"}
    assert sum("ipcontroller-" in path.name for path in files) == 2
    assert sum(path.is_socket() for path in files) >= 10  # the controller's
    for path in files:
        expected = 0o600 if path.is_file() else 0o700
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_kernel_killed_leaves_nothing(session):
    """
    A kernel killed by SIGKILL, as the system does when memory runs out, leaves no process and no
    file, though it had no chance to clean up.
    """
    assert len(session.helpers()) >= 4
    os.kill(session.kernel.pid, signal.SIGKILL)
    session.assert_nothing_left()


def test_kernel_killed_in_a_collective_leaves_nothing(session):
    """
    Ranks that block in C++ end with their kernel, even a rank that holds the GIL.
    """
    cell = (
        "%%px\nimport ctypes\nif dist.get_rank():\n    ctypes.PyDLL(None).sleep(60)\n"
        "else:\n    dist.barrier()\n"
    )
    session.kernel.client.execute(cell)
    session.kernel.client.get_iopub_msg(timeout=5)
    os.kill(session.kernel.pid, signal.SIGKILL)
    session.assert_nothing_left()


def test_kernel_restarted_leaves_nothing_and_starts_again(session):
    """
    A restart from the menu, in which jupyter_client asks the kernel to shut down, leaves nothing,
    and new ranks can be started.
    """
    session.kernel.manager.restart_kernel()
    session.kernel.client.wait_for_ready(timeout=30)
    session.assert_nothing_left()
    assert session.kernel.run(START.format(2)).status == "ok"
    assert session.kernel.run(ALL_REDUCE).text == "[0] 2.0\n[1] 2.0\n"


def test_kernel_restarted_now_leaves_nothing(session):
    """
    A restart that kills the kernel first, as JupyterLab does if it does not answer, leaves nothing.
    """
    session.kernel.manager.restart_kernel(now=True)
    session.kernel.client.wait_for_ready(timeout=30)
    session.assert_nothing_left()


def test_kernel_shut_down_leaves_nothing(session):
    """
    A kernel that is shut down, because its notebook is closed or the server stops, leaves nothing.
    """
    session.kernel.manager.shutdown_kernel()
    session.assert_nothing_left()


def test_supervisor_killed_leaves_no_process(session):
    """
    The ranks end with a killed supervisor, and the next cell reports the loss. Their files stay
    until new ranks are started or the kernel ends.
    """
    left = session.files()
    os.kill(session.supervisor_pid, signal.SIGKILL)
    session.assert_nothing_left(but_files=True)
    result = session.kernel.run("%px print(1)")
    assert result.ename == "RanksGone"
    assert result.seconds < 15.0
    assert session.kernel.run(START.format(2)).status == "ok"
    assert session.kernel.run(ALL_REDUCE).text == "[0] 2.0\n[1] 2.0\n"
    assert left
    assert not any(path.exists() for path in left)


def test_supervisor_killed_during_a_cell(session):
    """
    A supervisor that dies during a cell ends the cell with RanksGone: the kernel does not wait for
    ranks that no longer exist.
    """
    kernel = session.kernel
    kernel.run(
        f"import os, threading\nkill = threading.Timer(0.5, os.kill, ({session.supervisor_pid}, 9))"
    )
    result = kernel.run("kill.start()\n%px import time; time.sleep(30)", timeout_s=40)
    assert result.ename == "RanksGone"
    assert result.seconds < 15.0
    session.assert_nothing_left(but_files=True)


def test_controller_killed_during_a_cell(session):
    """
    A dead controller ends the next cell with RanksGone, since no cell can reach a rank without it;
    then new ranks can be started.
    """
    kernel = session.kernel
    os.kill(session.controller_pid, signal.SIGKILL)
    result = kernel.run("%px print(1)", timeout_s=20)
    assert result.ename == "RanksGone"
    assert kernel.run(START.format(2)).status == "ok"
    assert kernel.run(ALL_REDUCE).text == "[0] 2.0\n[1] 2.0\n"


def test_spawned_ranks_end_with_their_kernel(tmp_path):
    """
    Ranks that were spawned, not forked, end with their kernel, too.
    """
    start = START.replace("'cpu'", "'cpu', launcher='spawn'")
    session = Session(tmp_path, start=start)
    try:
        os.kill(session.kernel.pid, signal.SIGKILL)
        session.assert_nothing_left()
    finally:
        session.close()
