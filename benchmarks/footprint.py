"""
Measure the memory of ranks and of a learner. A shared page is divided by its processes.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import psutil
from kernel import BenchmarkFailed, ending, environment, running_kernel
from starting import FIRST_ALL_REDUCE, NUM_RANKS, START_OURS

from ddp_lessons.course.learner.lab import lab_command, lab_environment
from ddp_lessons.course.notebooks.notebook_paths import find_course

_ALONE = "import sys, torch; print('ready', flush=True); sys.stdin.read()"
_LESSON = Path("notebooks") / "00_ranks.ipynb"
_FIRST_DDP = """\
%%px
import time
from torch.nn.parallel import DistributedDataParallel
began_s = time.process_time()
inner = torch.nn.Linear(1, 1)
DistributedDataParallel(inner)
torch.optim.SGD(inner.parameters())
first_ddp_s = time.process_time() - began_s
"""
_SERVER_WITHIN_S = 60


def measure(round_number):
    """
    Measure ranks that are idle, ranks that have trained, and a process that has imported torch.

    Args:
        round_number: Number of the round, from 0.

    Returns:
        dict: {name of a sample: MiB}, and `first_ddp_s` in seconds. It is empty on systems that do
        not report shares of memory.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        return {}
    return {**_alone(), **_idle(), **_trained()}


def _alone():
    alone_mib = _alone_mib()
    return {"alone_mib": alone_mib, "all_alone_mib": NUM_RANKS * alone_mib}


def _idle():
    with tempfile.TemporaryDirectory() as folder, running_kernel(folder) as kernel:
        for cell in (START_OURS, FIRST_ALL_REDUCE):
            kernel.run_well(cell)
        samples = {"rank_mib": _largest_rank_mib(kernel), "started_mib": _started_mib(kernel)}
        kernel.run_well(_FIRST_DDP)
        samples["first_ddp_s"] = max(kernel.value("ranks.view['first_ddp_s']"))
        kernel.run_well("ranks.stop()")
    return samples


def _trained():
    with (
        tempfile.TemporaryDirectory() as folder,
        _idle_server(Path(folder)) as server,
        running_kernel(folder) as kernel,
    ):
        for cell in _cells_up_to_training():
            kernel.run_well(cell)
        server_mib = sum(map(pss_mib, server()))
        samples = {
            "trained_rank_mib": _largest_rank_mib(kernel),
            "learner_mib": server_mib + pss_mib(kernel.pid) + _started_mib(kernel),
        }
        kernel.run_well("ranks.stop()")
    return samples


def _cells_up_to_training():
    notebook = nbformat.read(find_course() / _LESSON, as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    last = next(number for number, cell in enumerate(cells) if "optimizer.step()" in cell)
    return cells[: last + 1]


def _pids_below(pid):
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


def _largest_rank_mib(kernel):
    return max(map(pss_mib, kernel.value("list(ranks.supervisor.pids.values())")))


def _started_mib(kernel):
    return sum(map(pss_mib, _pids_below(kernel.pid)))


@contextlib.contextmanager
def _idle_server(folder):
    # A server as `ddp-lessons lab` starts it, with no page open.
    ready = folder / "server.log"
    options = ["--ServerApp.token=", "--ServerApp.port_retries=50"]
    command = lab_command(find_course(), browser=False, rest=options, is_root=True)
    environ = {**lab_environment(environment()), "JUPYTER_RUNTIME_DIR": str(folder / "runtime")}
    with ready.open("w") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=folder)
    with ending(process.pid):
        try:
            _wait_for_server(process, ready)
            yield lambda: [
                process.pid,
                *(c.pid for c in psutil.Process(process.pid).children(True)),
            ]
        finally:
            process.terminate()
            process.wait(timeout=_SERVER_WITHIN_S)


def _wait_for_server(process, log):
    deadline = time.monotonic() + _SERVER_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        address = next((word for word in log.read_text().split() if "/lab/tree/" in word), None)
        if address is not None:
            with contextlib.suppress(urllib.error.URLError):
                urllib.request.urlopen(address, timeout=_SERVER_WITHIN_S).read()  # the page
                return
        time.sleep(0.05)
    raise BenchmarkFailed(f"The Jupyter server did not start:\n{log.read_text()[-2000:]}")


def pss_mib(pid):
    """
    Return the proportional memory of a process in MiB: its own pages, and its share of shared ones.

    Args:
        pid: Process id.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"No Pss line in smaps_rollup of process {pid}")


def _alone_mib():
    command = [sys.executable, "-c", _ALONE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()
        return pss_mib(process.pid)
