"""
Tests of the output limit and of late output: an endless loop that prints must not fill the kernel.
"""

import pytest
from kernels import running_kernel

from ddp_lessons.ranks.rank.output_limit import MOST_CHARACTERS, OutputLimit


class Stream:
    """
    A text stream that stores all text written to it.
    """

    def __init__(self):
        self.text = ""

    def write(self, text):
        """
        Store a text, and return its length, as text streams do.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.text += text
        return len(text)

    def read_descriptor(self):
        """
        Do nothing: this stream has no file descriptor.
        """


def test_what_fits_is_let_through_and_nothing_is_said():
    """
    Output below the limit passes unchanged, as in nearly every cell.
    """
    out, err = Stream(), Stream()
    bound = OutputLimit([out, err], most=10)
    for _ in range(3):  # the limit begins again with each cell
        bound.begin()
        assert out.write("12345") == 5
        assert err.write("67890") == 5
        bound.end()
    assert (out.text, err.text) == ("12345" * 3, "67890" * 3)


def test_what_is_over_is_left_out_and_counted():
    """
    stdout and stderr share one limit, because both go into one notebook. Text over the limit is
    counted and left out.
    """
    out, err = Stream(), Stream()
    bound = OutputLimit([out, err], most=10)
    bound.begin()
    assert err.write("123") == 3
    assert out.write("4567890abc") == 10  # write() returns as if all were written
    assert err.write("d") == 1
    bound.end()
    assert err.text == "123"
    assert out.text.startswith("4567890\n... 4 more characters of this rank's are left out")
    assert "a cell may print 10." in out.text
    with pytest.raises(TypeError, match="must be str, not bytes"):
        out.write(b"x")


HERE = "[0] here\n[1] here\n[2] here\n"
LAST_WORDS = {
    "a file descriptor": "import os\n_ = os.write(2, b'last words\\n')",
    "C": "import ctypes\n_ = ctypes.CDLL(None).write(1, b'last words\\n', 11)",
    "a child process": "import subprocess\n_ = subprocess.run(['echo', 'last words'])",
    "a forked process": (
        "import multiprocessing\n"
        "child = multiprocessing.get_context('fork').Process(target=print, args=['last words'])\n"
        "child.start()\nchild.join()"
    ),
    "a thread": (
        "import threading\nthread = threading.Thread(target=print, args=['last words'])\n"
        "thread.start()\nthread.join()"
    ),
    "a logger": "import logging\nlogging.warning('last words')",
    "a display": "from IPython.display import display\ndisplay('last words')",
    "a value": "'last words'",
}


@pytest.fixture(scope="module")
def kernel_with_ranks():
    """
    Yield a kernel with three ranks, whose file descriptors are read as in a notebook: ipykernel
    does not read them under pytest.
    """
    with running_kernel(PYTEST_CURRENT_TEST=None) as kernel:
        start = "from ddp_lessons.ranks import start_ranks\nranks = start_ranks(3, device='cpu')"
        assert kernel.run(start).status == "ok"
        yield kernel


def test_ranks_that_print_a_lot_leave_the_kernel_as_it_was(kernel_with_ranks):
    """
    If each rank prints 40 MB, 1 MiB of it arrives, and the next cell prints normally.
    """
    kernel = kernel_with_ranks
    shown = kernel.run("%%px\nfor number in range(40):\n    print('x' * 10**6)").text
    assert len(shown) < 3 * MOST_CHARACTERS + 1000
    left_out = 40 * (10**6 + 1) - MOST_CHARACTERS
    assert shown.count(f"... {left_out:,} more characters") == 3
    assert kernel.run("%px print('here')").text == HERE


@pytest.mark.parametrize("way", LAST_WORDS)
def test_the_last_that_a_cell_puts_out_is_shown(kernel_with_ranks, way):
    """
    All output has arrived when the prompt is back, on every rank, by whichever way it was written.
    """
    for _ in range(15):
        shown = kernel_with_ranks.run(f"%%px\n{LAST_WORDS[way]}").text
        assert [line.partition("]")[0] for line in shown.splitlines()] == ["[0", "[1", "[2"]
        assert shown.count("last words") == 3


def test_a_cell_that_puts_out_nothing_leaves_nothing_in_the_client(kernel_with_ranks):
    """
    ipyparallel's client keeps no record of finished cells without output, and still measures the
    times of its own views.
    """
    kernel_with_ranks.run(
        "for _ in range(20):\n    get_ipython().run_cell_magic('px', '', 'x = 1')"
    )
    held = kernel_with_ranks.run(
        "client = ranks.client\nprint([len(held) for held in (client.outstanding, client._futures, "
        "client._output_futures, client.results)])"
    )
    assert held.text == "[0, 0, 0, 0]\n"
    times = kernel_with_ranks.run(
        "result = ranks.view.execute('x = 2', block=False)\nresult.get()\n"
        "print(all(one['started'] for one in result.metadata), result.serial_time > 0)"
    )
    assert times.text == "True True\n"


def test_a_cell_that_closes_its_output_loses_no_rank(kernel_with_ranks):
    """
    If a cell closes file descriptor 1, no rank is lost, and print() still works.
    """
    kernel_with_ranks.run("%px import os\n%px os.dup2(1, 99)\n%px os.close(1)")
    assert kernel_with_ranks.run("%px print('here')").text == HERE
    kernel_with_ranks.run("%px _ = os.dup2(99, 1)")
    assert "here" in kernel_with_ranks.run("%px _ = os.write(1, b'here')").text


def test_a_child_that_never_stops_printing_holds_no_cell(kernel_with_ranks):
    """
    A child process that prints without end does not keep a cell from ending, and the rank's log
    stays below its limit.
    """
    kernel = kernel_with_ranks
    begin = "%%px --targets 0\nimport subprocess\nchild = subprocess.Popen(['yes', 'still here'])"
    assert kernel.run(begin).status == "ok"
    assert "[2] here" in kernel.run("%px print('here')").text
    bound = "from ddp_lessons.ranks.rank.output_limit import _MOST_LOGGED_BYTES as most"
    seen = kernel.run(
        f"%%px --targets 0\nimport os, sys, time\n{bound}\n"
        "size = lambda: os.fstat(sys.stdout._original_stdstream_copy).st_size\n"
        "while size() < most:\n    time.sleep(0.1)"
    )
    assert seen.status == "ok"
    end = "%%px --targets 0\nchild.kill()\n_ = child.wait()\nassert size() < 1.01 * most"
    assert kernel.run(end).status == "ok"
    # On a busy machine the rest of the child's output may arrive with the next cells.
    while kernel.run("%px print('here')").text != HERE:
        pass


def test_a_full_disk_costs_the_log_and_not_the_output(kernel_with_ranks):
    """
    Output to a file descriptor is shown even if the disk is full and the rank's log cannot grow.
    """
    kernel = kernel_with_ranks
    fill = """%%px
import os, sys
log = sys.stdout._original_stdstream_copy
kept, full = os.dup(log), os.open("/dev/full", os.O_WRONLY)
_ = os.dup2(full, log)"""
    assert kernel.run(fill).status == "ok"
    for _ in range(2):
        result = kernel.run("%px _ = os.write(1, b'here')")
        assert (result.status, result.text.count("here")) == ("ok", 3)
        assert "Error" not in result.text
    kernel.run("%px _ = os.dup2(kept, log)")


CUT_OFF = """%%px --targets 1
import sys, zmq
talk = sys.stdout.pub_thread
talk.schedule(lambda: talk.socket.disconnect(talk.socket.get(zmq.LAST_ENDPOINT)))
"""


def test_output_that_does_not_arrive_is_told_of(kernel_with_ranks):
    """
    If a rank's output does not arrive, the cell says so: a learner would otherwise look for a
    mistake in the cell.
    """
    kernel = kernel_with_ranks
    kernel.run(CUT_OFF)
    assert kernel.run("%px print('here')").text == (
        "[0] here\n[2] here\nThe output of rank 1 did not arrive: all of it within 1 s of the "
        "cell's end (got a part, or none). Run the cell again; if it says so again, call "
        "ranks.stop(), then start_ranks().\n"
    )
    assert kernel.run("ranks.stop()\nranks = start_ranks(3, device='cpu')").status == "ok"
    assert kernel.run("%px print('here')").text == HERE
