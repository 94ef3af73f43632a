"""
Tests that a cell sends and stores no message that is never read, and that ipyparallel's own API
works.
"""

import psutil
import pytest
from kernels import running_kernel

NUM_CELLS = 20
SEND = """
from collections import Counter
heard, client = Counter(), ranks.client
future = client.send_execute_request(
    client._mux_stream,
    "print('told')",
    silent=False,
    ident=client._engines[1].encode(),
    message_future_hook=lambda future: future.iopub_callbacks.append(
        lambda message: heard.update([message["header"]["msg_type"]])
    ),
)
future.output.result(120)
"""


@pytest.fixture(scope="module")
def kernel():
    """
    Yield a kernel with two ranks.
    """
    with running_kernel() as kernel:
        kernel.run("from ddp_lessons import start_ranks\nranks = start_ranks(2, device='cpu')")
        yield kernel


def test_a_cell_sends_its_output_and_that_it_is_done(kernel):
    """
    A rank sends its output and one status message for a cell. The kernel parses the messages of all
    ranks: with 32 ranks, two more for each took a third of a short cell's time.
    """
    result = kernel.run(SEND)
    assert result.status == "ok", result
    heard = kernel.value("dict(heard)")
    assert heard.pop("status", 0) <= 1  # idle; ipyparallel may have dropped the future by then
    assert heard == {"stream": 1}


def test_the_controller_is_idle_while_cells_run(kernel):
    """
    The controller uses less CPU time than any rank. ipyparallel's own, which records every message,
    uses more.
    """
    controller = psutil.Process(kernel.value("ranks.supervisor.controller_pid"))
    ranks = [psutil.Process(pid) for pid in kernel.value("ranks.supervisor.pids").values()]
    source = f"for _ in range({20 * NUM_CELLS}): get_ipython().run_cell_magic('px', '', 'x = 1')"

    def cpu_s(process):
        return sum(process.cpu_times()[:2])

    before = [cpu_s(process) for process in (controller, *ranks)]
    assert kernel.run(source).status == "ok"
    used = [cpu_s(p) - b for p, b in zip((controller, *ranks), before, strict=True)]
    assert used[0] < min(used[1:]), used


def test_ipyparallels_own_views_work_without_the_record(kernel):
    """
    ipyparallel's views, load-balanced tasks and asynchronous results work though the controller
    keeps no record, because learners may know them.
    """
    cell = """
import os
async_result = ranks.client[:].apply_async(os.getpid)
assert sorted(async_result.get(timeout=120)) == sorted(ranks.supervisor.pids.values())
assert async_result.elapsed >= 0 and len(async_result.started) == 2
balanced = ranks.client.load_balanced_view()
assert balanced.map_sync(abs, [-1, -2, -3]) == [1, 2, 3]
told = ranks.client[:].execute("print('told')", block=True)
assert [out.strip() for out in told.stdout] == ["told", "told"]
ranks.client[:].push({"y": 5}, block=True)
assert ranks.client[:]["y"] == [5, 5]
"""
    assert kernel.run(cell).status == "ok", kernel.run(cell)


def test_a_cell_is_transformed_anew_when_magics_have_changed(kernel):
    """
    A cell is transformed again after magics have changed, though its transformed text is reused
    within one cell.
    """
    alias = "%px get_ipython().alias_manager.define_alias('said', 'echo first')"
    assert kernel.run(alias).status == "ok"
    assert kernel.run("%px %said").text.count("first") == 2
    assert kernel.run(alias.replace("first", "second")).status == "ok"
    assert kernel.run("%px %said").text.count("second") == 2
    assert "[0] 3" in kernel.run("%%px\nif True:\n    print(1 + 2)").text


FREED = """%%px
import sys
import torch
import torch.distributed as dist
if dist.get_rank() == 0:
    raise ValueError("on purpose")
dist.all_reduce(torch.ones(1))
"""


def test_a_freed_rank_renders_no_traceback(kernel):
    """
    A released rank renders no traceback. IPython would parse torch's whole files for it: 31 ranks
    would delay the prompt by seconds, for a text that is never shown.
    """
    kernel.run("%px x = 1")  # the effects of earlier tests have ended after this cell
    result = kernel.run(FREED)
    assert (result.status, "rank 0 raised ValueError: on purpose" in result.evalue) == (
        "error",
        True,
    )
    assert "rank 1 was released" in result.evalue
    renderer = "%%px\nloaded = 'stack_data' in sys.modules"
    assert kernel.run(renderer).status == "ok"
    assert kernel.value("ranks.view['loaded']") == [True, False]


def test_a_cell_that_prints_nothing_wakes_no_thread(kernel):
    """
    A cell without output does not wake the thread that sends output: each flush waits for it, a
    fifth of a short cell's time.
    """
    count = (
        "%%px\nimport sys\nthread, calls = sys.stdout.pub_thread, []\n"
        "schedule = thread.schedule\n"
        "thread.schedule = lambda call: (calls.append(1), schedule(call))[1]"
    )
    assert kernel.run(count).status == "ok"
    assert kernel.run("%%px\nx = 1").status == "ok"
    assert kernel.run("%%px\nnum_quiet = len(calls)\ncalls.clear()").status == "ok"
    quiet = max(kernel.value("ranks.view['num_quiet']"))
    assert kernel.run("%%px\nprint(x, end='', flush=True)\nprint(2)").text == "[0] 12\n[1] 12\n"
    assert kernel.run("%%px\nnum_loud = len(calls)\ndel thread.schedule").status == "ok"
    assert quiet <= 4  # two cells, each with a reply and an idle status
    assert min(kernel.value("ranks.view['num_loud']")) > quiet
