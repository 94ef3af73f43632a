"""
An error says whether a name is on the ranks or in the notebook, and shows no source of the package.
"""

import pytest
from kernels import running_kernel

NO_TRACEBACK = """
import sys
from IPython import get_ipython
shown = []
get_ipython()._showtraceback = lambda kind, error, lines: shown.extend(lines)
"""


@pytest.fixture(scope="module")
def kernel():
    """
    Return a kernel that records the tracebacks that it shows.
    """
    with running_kernel() as kernel:
        kernel.run("from ddp_lessons import predict, start_ranks")
        kernel.run(NO_TRACEBACK)
        yield kernel


def shown(kernel, cell):
    """
    Run a cell that fails, and return the last lines of what is shown.
    """
    kernel.run("shown.clear()")
    kernel.run(cell)
    return kernel.value("'\\n'.join(shown)")


def test_a_name_is_said_to_live_on_the_other_side(kernel):
    """
    The error names the other side, because the commonest slip is a missing `%%px`, or one too many.
    """
    start = "run start_ranks() first, then begin the cell with %%px."
    assert shown(kernel, "print(rank)").endswith(f"`rank` lives on the ranks: {start}")
    assert "lives" not in shown(kernel, "print(rnk)")
    kernel.run("ranks = start_ranks(2, device='cpu')")
    kernel.run("%%px\nimport torch.distributed as dist\nmine = dist.get_rank()")
    said = shown(kernel, "print(mine)")
    assert said.endswith("`mine` lives on the ranks: begin the cell with %%px.")
    assert "lives" not in shown(kernel, "print(rnk)")
    said = shown(kernel, "import torch.distributed as dist\ndist.barrier()")
    assert said.endswith(
        "The ranks are in a group, and the notebook is not: begin the cell with %%px."
    )
    assert shown(kernel, "%%px\nranks.status()").splitlines()[:2] == [
        "ranks 0 and 1 raised NameError: name 'ranks' is not defined at line 1: ranks.status()",
        "`ranks` lives in the notebook, and ranks have variables of their own: define it in a cell "
        "that begins with %%px.",
    ]
    assert "lives" not in shown(kernel, "%%px\nprint(Out)")  # `Out` is IPython's own, on both sides


def test_who_joins_ranks_twice_hears_who_has_joined_them(kernel):
    """
    A cell that joins the ranks a second time is told that start_ranks has joined them, because
    every guide begins with that call.
    """
    kernel.run("ranks = start_ranks(2, device='cpu')")
    said = shown(kernel, "%%px\nimport torch.distributed as dist\ndist.init_process_group()")
    assert "start_ranks has joined the ranks to a group already: leave this call out" in said


def test_start_ranks_mends_a_group_that_a_cell_has_left(kernel):
    """
    `start_ranks` restores a group that a cell has left. It once said that the ranks were ready, and
    no collective worked.
    """
    kernel.run("ranks = start_ranks(2, device='cpu')")
    kernel.run("%%px\nimport torch.distributed as dist\nx = 5\ndist.destroy_process_group()")
    told = kernel.run("ranks = start_ranks(2, device='cpu')")
    assert "The ranks have joined a new group." in told.text
    assert kernel.run("%%px\ndist.barrier()\nassert x == 5").status == "ok"
    assert "joined" not in kernel.run("ranks = start_ranks(2, device='cpu')").text


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        ("x = 1\nstart_ranks(0)", ["line 2: start_ranks(0)", "BadInput: Wrong number of ranks: "]),
        (
            "def ask():\n    predict('x', 'four')\nask()",
            ["line 2: predict('x', 'four')", "BadInput: Neither a number nor a letter: "],
        ),
        (
            "from ddp_lessons import stop_ranks\nstop_ranks()\n"
            "get_ipython().run_cell_magic('px', '', 'x = 1')",
            ["RanksGone: The ranks are gone: "],
        ),
    ],
)
def test_an_error_of_ours_shows_the_line_and_the_message(kernel, cell, lines):
    """
    An error of the package shows the cell's line and the message, and not sixty lines of our
    source.
    """
    found = shown(kernel, cell).splitlines()
    assert len(found) == len(lines)
    for line, beginning in zip(found, lines, strict=True):
        assert line.startswith(beginning)
