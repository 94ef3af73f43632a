"""
Tests of starts that cannot succeed: each names its cause, and leaves no process and no file.
"""

import re

import psutil
import pytest
from kernels import running_kernel
from processes import holds_at_most, new_mark, wait_until_gone
from waiting import wait_until

from ddp_lessons.ranks.kernel.launchers.registry import RANK_LAUNCHERS

pytestmark = [pytest.mark.timeout(120)]

GONE_S = 5.0
NAMES = ", ".join(f'"{name}"' for name in RANK_LAUNCHERS)
"""
The launchers, as a message lists them.
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """
    Yield a kernel without ranks, with its own folders for runtime files and for IPython's profile.
    """
    mark = new_mark()
    runtime = tmp_path_factory.mktemp("runtime")
    ipython = tmp_path_factory.mktemp("ipython")
    with running_kernel(
        DDP_LESSONS_RUNTIME_DIR=str(runtime), IPYTHONDIR=str(ipython), **mark
    ) as kernel:
        kernel.mark, kernel.runtime, kernel.ipython = mark, runtime, ipython
        kernel.run("import gc, os\nfrom ddp_lessons.ranks import start_ranks")
        kernel.run("start_ranks(1).stop(); gc.collect()")
        kernel.process = psutil.Process(kernel.pid)
        kernel.held = kernel.process.num_fds(), kernel.process.num_threads()
        yield kernel


def refusal(kernel, call, **environment):
    """
    Start ranks, assert that the start fails and leaves nothing, and return its error's name and
    text.
    """
    before = kernel.value("dict(os.environ)")
    kernel.run(f"os.environ.update({environment!r})")
    result = kernel.run(f"ranks = start_ranks({call})")
    kernel.run(f"os.environ.clear(); os.environ.update({before!r})")
    assert result.status == "error", result
    assert result.text == ""
    nothing_is_left(kernel)
    return result.ename, result.evalue


def nothing_is_left(kernel):
    """
    Assert that a kernel has no ranks, and none of their files.
    """
    wait_until_gone(kernel.mark, GONE_S, but=(kernel.pid,))
    assert list(kernel.runtime.iterdir()) == []
    names = [path.name for path in kernel.ipython.rglob("*ddp-lessons*")]
    assert names == []


def holds_no_more(kernel):
    """
    Assert that a kernel has no more descriptors and threads than at the beginning of this module.
    """
    kernel.run("gc.collect()")
    wait_until(
        lambda: holds_at_most(kernel.process, *kernel.held), 5, f"no more than {kernel.held}"
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            "0",
            "Wrong number of ranks: expected a whole number from 1 (got 0). Try start_ranks(4).",
        ),
        (
            "2, device='tpu'",
            'Unknown device: expected "auto", "cpu" or "cuda" (got \'tpu\'). '
            "Leave device out to have one chosen.",
        ),
        (
            "2, launcher='docker'",
            f"Unknown launcher: expected one of {NAMES} (got 'docker'). "
            "Leave launcher out to have one chosen.",
        ),
        (
            "2, launcher='kubernetes'",
            f"Unknown launcher: expected one of {NAMES} (got 'kubernetes'). "
            '"ddp-lessons script NOTEBOOK --kubernetes" makes a job of tagged cells.',
        ),
    ],
)
def test_start_refuses_bad_arguments(kernel, call, said):
    """
    Wrong arguments raise BadInput with the allowed values, before any process is started.
    """
    assert refusal(kernel, call) == ("BadInput", said)


def test_start_refuses_a_million_ranks(kernel):
    """
    A million ranks are refused with a number that this machine can hold.
    """
    ename, said = refusal(kernel, "10**6")
    assert ename == "BadInput"
    assert said.startswith("Too many ranks: this machine can hold ")
    assert "(got 1000000). Try start_ranks(" in said


def test_start_refuses_cuda_without_a_gpu(kernel):
    """
    `device="cuda"` without a GPU is refused. The GPUs are counted only after torch is imported in a
    new process, and that process ends, too.
    """
    assert refusal(kernel, "device='cuda'", CUDA_VISIBLE_DEVICES="") == (
        "BadInput",
        'No GPU for device="cuda": torch must see at least one (got 0). '
        'Run "ddp-lessons doctor" to see why, or leave device out to use the CPU.',
    )


def test_start_with_a_runtime_folder_that_cannot_be(kernel, tmp_path):
    """
    A runtime folder that cannot be made is reported with its path. The variable names a file here,
    because root could write to any folder.
    """
    file = tmp_path / "file"
    file.touch()
    ename, said = refusal(kernel, "2", DDP_LESSONS_RUNTIME_DIR=str(file))
    assert ename == "StartFailed"
    assert said == (
        "The runtime folder cannot be written: ranks need about 1 MiB there "
        f"(got {file}: File exists). Free some space, or set DDP_LESSONS_RUNTIME_DIR to "
        "a folder that you can write."
    )


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        (
            "slurm",
            "no sbatch on this machine. It takes a machine that hands jobs in, such as a login "
            "node. Leave launcher out for ranks on this machine.",
        ),
        (
            "mpi",
            "no mpiexec on this machine. On Debian: apt-get install openmpi-bin. Or leave "
            "launcher out.",
        ),
    ],
)
def test_start_by_what_is_not_there(kernel, launcher, said):
    """
    A launcher whose command is missing names the command, and what to do: most machines have
    neither Slurm nor MPI.
    """
    assert refusal(kernel, f"2, launcher={launcher!r}", PATH="/nowhere") == (
        "StartFailed",
        f"Ranks could not be started: launcher={launcher!r} failed with {said}",
    )


@pytest.mark.parametrize("launcher", ["auto", "spawn"])
def test_start_with_a_torch_that_cannot_be_imported(kernel, tmp_path, launcher):
    """
    If torch cannot be imported, the learner sees torch's own error.
    """
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open it')")
    ename, said = refusal(kernel, f"2, launcher={launcher!r}", PYTHONPATH=str(tmp_path))
    assert ename == "StartFailed"
    first = said.splitlines()[0]
    assert first == "Ranks could not be started: ImportError: libtorch_cpu.so: cannot open it."


DIES = """
import os
import sys

if "ddp_lessons.ranks.supervisor.child_main" in sys.orig_argv:
    print("no memory left for this rank", flush=True)
    os._exit(7)
"""


def test_start_with_ranks_that_die_at_once(kernel, tmp_path):
    """
    If ranks die while they start and the supervisor lives, the start fails soon, with the last
    lines that a rank printed.
    """
    (tmp_path / "sitecustomize.py").write_text(DIES)
    ename, said = refusal(kernel, "2, launcher='spawn'", PYTHONPATH=str(tmp_path))
    assert ename == "StartFailed"
    assert said.startswith("Ranks could not be started: rank")
    assert "did not start.\n" in said
    assert "no memory left for this rank\n" in said
    assert said.endswith('Run "ddp-lessons doctor" to see what is wrong.')


def test_start_that_takes_too_long(kernel):
    """
    A start that exceeds its time limit fails, and ends every process that it has started.
    """
    ename, said = refusal(kernel, "2, timeout_s=0.01")
    assert ename == "StartFailed"
    step = "(the controller did not answer|importing torch did not happen)"
    assert re.match(rf"Ranks could not be started: {step} in 0 s\.", said)


@pytest.mark.parametrize("after_s", [0.05, 0.3, 0.6, 0.9, 1.2])
def test_start_that_is_stopped(kernel, after_s):
    """
    Stop at any moment while ranks start leaves nothing, and the next start works.
    """
    result = kernel.run("ranks = start_ranks(2, device='cpu')", stop_after_s=(after_s,))
    if result.status == "ok":  # the start was faster than Stop
        assert kernel.run("%px print(1)").text == "[0] 1\n[1] 1\n"
        kernel.run("ranks.stop()")
    else:
        assert result.ename == "StartStopped"
    nothing_is_left(kernel)


STOP_IN = """
import signal, time
from {module} import {owner}

real = {owner}.{name}

def stopped(*args, **kwargs):
    {owner}.{name} = real
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)  # Stop is heard in the main thread, while this one has done nothing yet
    return real(*args, **kwargs)

{owner}.{name} = stopped
"""


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        ("ddp_lessons.ranks.kernel.supervisor_client", "SupervisorClient", "_listen"),
        ("ipyparallel._async", "AsyncFirst", "_thread_main"),
        ("ipyparallel", "Client", "__init__"),
        ("ipyparallel", "Client", "_io_main"),
        ("ddp_lessons.ranks.kernel.ranks", "Ranks", "activate"),
    ],
)
def test_start_that_is_stopped_at_a_bad_moment(kernel, module, owner, name):
    """
    Stop leaves nothing even while a thread starts, a client connects, or the start has just ended:
    moments that last long on a busy machine.
    """
    kernel.run(STOP_IN.format(module=module, owner=owner, name=name))
    result = kernel.run("ranks = start_ranks(2, device='cpu')")
    assert (result.ename, result.text) == ("StartStopped", "")
    assert result.evalue.startswith("Stop was pressed before the ranks had started.")
    nothing_is_left(kernel)
    holds_no_more(kernel)


def test_start_after_all_that(kernel):
    """
    After all these failures the same kernel starts ranks, and holds no more descriptors and threads
    than at first.
    """
    assert kernel.run("ranks = start_ranks(2, device='cpu')").status == "ok"
    assert kernel.run("%px print(1)").text == "[0] 1\n[1] 1\n"
    (folder,) = kernel.runtime.iterdir()
    assert kernel.value("str(ranks.supervisor.folder)") == str(folder)
    kernel.run("ranks.stop()")
    nothing_is_left(kernel)
    holds_no_more(kernel)
