"""
Tests that `%%px` and its related magics work on our ranks as ipyparallel documents them.
"""

import re

import pytest
from kernels import running_kernel
from waiting import HANGS_AFTER_S, wait_until


@pytest.fixture(scope="module")
def kernel():
    """
    Yield a kernel with three ranks, which no test of this module ends.
    """
    with running_kernel() as kernel:
        cell = "from ddp_lessons.ranks import start_ranks\nranks = start_ranks(3, device='cpu')"
        assert kernel.run(cell).status == "ok"
        ok(kernel, "%%px\nimport torch\nimport torch.distributed as dist\nrank = dist.get_rank()")
        yield kernel


def ok(kernel, cell):
    """
    Run a cell that must not fail, and return what it printed.
    """
    result = kernel.run(cell)
    assert result.status == "ok", result
    return result.text


@pytest.mark.parametrize(
    ("targets", "ranks"), [("0", [0]), ("2", [2]), ("0,2", [0, 2]), ("1:", [1, 2]), ("::2", [0, 2])]
)
def test_px_runs_on_targets(kernel, targets, ranks):
    """
    `--targets` runs a cell on the given ranks only: the other ranks do not get its variable.
    """
    ok(kernel, "%px seen = 0")
    text = ok(kernel, f"%%px --targets {targets}\nseen = 1\nprint(rank)")
    assert text == "".join(f"[{r}] {r}\n" for r in ranks)
    assert ok(kernel, "%px print(seen)") == "".join(f"[{r}] {int(r in ranks)}\n" for r in range(3))


@pytest.mark.parametrize("targets", ["3", "0,7"])
def test_px_refuses_unknown_targets(kernel, targets):
    """
    An unknown rank in `--targets` is refused before the cell runs on any rank.
    """
    result = kernel.run(f"%%px --targets {targets}\nprint('started')")
    assert result.status == "error"
    assert f"Unknown rank: expected 0 to 2 (got {targets[-1]}). Correct --targets." in result.text
    assert "started" not in result.text


def test_px_of_a_line(kernel):
    """
    `%px` runs one line, and shows the value of an expression.
    """
    assert ok(kernel, "%px rank * 10") == "[0] 0\n[1] 10\n[2] 20\n"
    assert ok(kernel, "%px y = rank + 1") == ""
    assert ok(kernel, "%px print(y)") == "[0] 1\n[1] 2\n[2] 3\n"
    assert ok(kernel, "%px -y") == "[0] -1\n[1] -2\n[2] -3\n"


@pytest.mark.parametrize("option", ["--targets 0", "-t 0", "--noblock"])
def test_line_magic_says_that_it_takes_no_options(kernel, option):
    """
    `%px` with an option names the option and suggests `%%px`: run as code, it would be a syntax
    error that names neither.
    """
    result = kernel.run(f"%px {option} y = 1")
    name = option.split()[0]
    assert f"expected one line of code after %px (got '{name}'). Use %%px {name}" in result.text


def test_px_without_waiting(kernel):
    """
    `--noblock` gives the prompt back at once, and `%pxresult` shows the output later.
    """
    num_listeners = kernel.value("len(ranks.supervisor._listeners)")
    cell = "%%px --noblock\ndist.barrier()\nprint('late', rank)"
    result = kernel.run(cell)
    assert result.status == "ok"
    assert "AsyncResult" in result.text
    text = ok(kernel, "%pxresult")
    assert re.findall(r"late \d", text) == ["late 0", "late 1", "late 2"]
    assert kernel.value("len(ranks.supervisor._listeners)") == num_listeners


@pytest.mark.parametrize("options", ["-o result", "--out result", "--noblock -o result"])
def test_px_keeps_a_result(kernel, options):
    """
    `-o` stores the AsyncResult in a variable of the kernel.
    """
    ok(kernel, f"%%px {options}\nrank ** 2")
    assert kernel.value("result.wait_for_output(5)")
    shown = "[reply.execute_result['data']['text/plain'] for reply in result.get()]"
    assert kernel.value(shown) == ["0", "1", "4"]
    assert kernel.value("result.engine_id") == [0, 1, 2]


def test_px_on_targets_that_were_chosen_before(kernel):
    """
    `%pxconfig --targets` chooses the ranks for the following cells, until it is set again.
    """
    ok(kernel, "%pxconfig --targets 1")
    assert ok(kernel, "%px print(rank)") == "[1] 1\n"
    ok(kernel, "%pxconfig --targets all")
    assert ok(kernel, "%px print(rank)") == "[0] 0\n[1] 1\n[2] 2\n"


def test_px_on_the_notebook_too(kernel):
    """
    `--local` runs a cell in the kernel, too, so that kernel and ranks have the same imports.
    """
    ok(kernel, "%%px --local\nboth = 5")
    assert kernel.value("both") == 5
    assert ok(kernel, "%px print(both)") == "[0] 5\n[1] 5\n[2] 5\n"


def test_px_raises_where_a_rank_raises(kernel):
    """
    An error on one rank is an error of the cell, so that Run All stops.
    """
    result = kernel.run("%%px --targets 1\n1 / 0")
    assert (result.status, result.ename) == ("error", "RankRaised")
    assert result.evalue.startswith("rank 1 raised ZeroDivisionError: division by zero at line 1")
    assert ok(kernel, "%px print(rank)") == "[0] 0\n[1] 1\n[2] 2\n"


def test_px_waits_for_a_thread_without_being_ended(kernel):
    """
    Ranks that all wait for their own threads or child processes are not ended: an earlier version
    called that a deadlock.
    """
    cell = (
        "%%px\nimport subprocess, threading\nthreading.Event().wait(0.9)\n"
        "print(subprocess.Popen(['sleep', '0.9']).wait())"
    )
    assert ok(kernel, cell) == "[0] 0\n[1] 0\n[2] 0\n"


def test_random_numbers_differ_between_ranks(kernel):
    """
    Each rank draws other random numbers. Forked processes inherit NumPy's state: without new seeds
    all ranks would draw the same augmentations.
    """
    ok(kernel, "%px import random, numpy as np")
    for draw in ("random.random()", "np.random.rand()", "np.random.default_rng().random()"):
        numbers = re.findall(r"0\.\d+|\d\.\d+e-\d+", ok(kernel, f"%px print({draw})"))
        assert len(numbers) == 3, draw
        assert len(set(numbers)) == 3, draw


def test_status_is_a_table(kernel):
    """
    status() is a table with one line for each rank, and the notebook shows the same as HTML.
    """
    title, header, *rows = kernel.value("repr(ranks.status())").splitlines()
    assert title == kernel.value("repr(ranks)")
    assert title.startswith("3 ranks ready: cpu, gloo, ")
    assert header.split() == ["rank", "state", "device", "process", "memory"]
    pids = kernel.value("ranks.supervisor.pids")
    for rank, row in enumerate(rows):
        words = row.split()
        assert words[:4] == [str(rank), "idle", "cpu", str(pids[rank])]
        assert 50 < int(words[4]) < 2000
        assert words[5] == "MiB"
    html = kernel.value("ranks.status()._repr_html_()")
    assert html.count("<tr>") == 4
    assert f"<td>{pids[2]}</td>" in html


def test_status_tells_busy_ranks(kernel, tmp_path):
    """
    status() says which ranks are busy while a cell runs in the background.
    """
    seen = tmp_path / "seen"
    wait = f"import os, time\nwhile not os.path.exists({str(seen)!r}):\n    time.sleep(0.01)"
    ok(kernel, f"%%px --noblock --targets 1\n{wait}")

    def states():
        rows = kernel.value("repr(ranks.status())").splitlines()[2:]
        return [row.split()[1] for row in rows]

    wait_until(lambda: states() == ["idle", "busy", "idle"], HANGS_AFTER_S, "rank 1 to be busy")
    seen.touch()
    ok(kernel, "%pxresult")
    wait_until(lambda: states() == ["idle"] * 3, HANGS_AFTER_S, "rank 1 to be idle")


def test_regroup_makes_a_new_group(kernel):
    """
    regroup() makes a new group, and names the models that hold the old one.
    """
    ok(kernel, "%px model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))")
    assert ok(kernel, "ranks.regroup()") == (
        "3 ranks joined a new group. "
        "`model` holds the old group: run the cell that makes it again.\n"
    )
    ok(kernel, "%px del model")
    assert ok(kernel, "ranks.regroup()") == "3 ranks joined a new group.\n"
    ok(kernel, "%%px\nt = torch.ones(())\ndist.all_reduce(t)\nassert t == 3")


def test_a_rank_that_cannot_leave_its_group_is_replaced(kernel):
    """
    A rank that cannot be released is replaced: rank 0 receives from rank -1, which does not exist,
    and that call of Gloo's never returns.

    After this test rank 0 is new and has lost its variables.
    """
    cell = "%%px\nt = torch.ones(1)\nwork = dist.irecv(t, src=rank - 1)\nwork.wait()"
    result = kernel.run(cell)
    assert result.status == "error"
    assert "A new rank 0 is in place" in result.evalue
    ok(
        kernel,
        "%%px\nimport torch, torch.distributed as dist\nt = torch.ones(1)\ndist.all_reduce(t)",
    )
    assert ok(kernel, "%px print(int(t))") == "[0] 3\n[1] 3\n[2] 3\n"


def test_magics_mean_on_ranks_what_they_mean_in_a_notebook(kernel):
    """
    Shell commands, line magics, cell magics and a rank's own input transformer work in a `%%px`
    cell.
    """
    shown = ok(kernel, "%%px\nx = !echo here\nprint(x[0])\n%env SAID=there\n!echo $SAID")
    assert shown.count(" here\n") == shown.count(" there\n") == 3
    assert shown.count("env: SAID=there") == 3
    assert ok(kernel, "%%px\n%%writefile -a /dev/null\nx").count("/dev/null") == 3
    own = """%%px
def louder(lines):
    return [line.replace("whisper", "print") for line in lines]
get_ipython().input_transformers_cleanup.append(louder)"""
    ok(kernel, own)
    assert ok(kernel, "%px whisper('here')") == "[0] here\n[1] here\n[2] here\n"
    failed = kernel.run("%px x = = 1")
    assert "SyntaxError" in failed.evalue
    assert "ranks 0-2 raised" in failed.evalue
    ok(kernel, "%px get_ipython().input_transformers_cleanup.remove(louder)")
