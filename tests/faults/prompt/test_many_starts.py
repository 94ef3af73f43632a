"""
Tests of ranks that are started repeatedly, and by many kernels at once: no leaks and no clashes.
"""

import psutil
import pytest
from kernels import Kernel, running_kernel
from processes import holds_at_most, new_mark, wait_until_gone
from waiting import wait_until

pytestmark = [pytest.mark.timeout(180)]

START = "from ddp_lessons.ranks import start_ranks\nranks = start_ranks(2, device='cpu')"
NUM_KERNELS = 8


def test_start_and_stop_leak_nothing(tmp_path):
    """
    After five more starts and stops the kernel holds no more descriptors and threads than after the
    first.
    """
    with running_kernel(DDP_LESSONS_RUNTIME_DIR=str(tmp_path)) as kernel:
        process = psutil.Process(kernel.pid)

        def start_and_stop():
            assert kernel.run(START).status == "ok"
            assert kernel.run("%px print(1)").text == "[0] 1\n[1] 1\n"
            assert kernel.run("ranks.stop()").status == "ok"

        start_and_stop()
        kernel.run("import gc; gc.collect()")
        held = process.num_fds(), process.num_threads()
        for _ in range(5):
            start_and_stop()
        kernel.run("gc.collect()")
        # IPython writes its history now and then, which needs one or two more descriptors
        # meanwhile.
        wait_until(lambda: holds_at_most(process, *held), 5, f"no more than {held} to be held")
        assert process.children() == []  # no zombie either
        assert list(tmp_path.iterdir()) == []


def reply(kernel, request):
    """
    Return the status of a cell that was sent to a kernel earlier.
    """
    while True:
        message = kernel.client.get_shell_msg(timeout=60)
        if message["parent_header"].get("msg_id") == request:
            return message["content"]["status"]


def test_kernels_that_start_at_once_do_not_clash(tmp_path, monkeypatch):
    """
    Eight kernels of one user, with one folder and one IPython profile, start ranks at the same
    moment, and each gets its own.
    """
    monkeypatch.chdir(tmp_path)
    mark = new_mark()
    shared = {"DDP_LESSONS_RUNTIME_DIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    kernels = []
    try:
        for _ in range(NUM_KERNELS):
            kernels.append(Kernel(**shared, **mark))
        requests = [kernel.client.execute(START) for kernel in kernels]
        replies = [reply(*pair) for pair in zip(kernels, requests, strict=True)]
        assert replies == ["ok"] * NUM_KERNELS
        for i, kernel in enumerate(kernels):
            kernel.run(f"%px import torch, torch.distributed as dist; t = torch.tensor({i})")
            text = kernel.run("%px dist.all_reduce(t); print(t.item())").text
            assert text == f"[0] {2 * i}\n[1] {2 * i}\n"
        supervisors = {kernel.value("ranks.supervisor.supervisor_pid") for kernel in kernels}
        assert len(supervisors) == NUM_KERNELS
    finally:
        for kernel in kernels:
            kernel.close()
    wait_until_gone(mark, 5.0)

    def files():
        return [path.name for path in tmp_path.rglob("*") if "ddp-lessons" in path.name]

    wait_until(lambda: not files(), 5.0, f"files to go: {files()}")
