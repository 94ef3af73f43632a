"""
Tests of Stop at the very end of a cell, while its message or its reply is sent, in a real kernel.
"""

import signal

import pytest
from kernels import running_kernel

from ddp_lessons.ranks.kernel.stop_button import StopButton

pytestmark = [pytest.mark.timeout(60)]

PRESS_IN = """
import os, signal, time
from IPython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from ddp_lessons.ranks.kernel import cells

times = []
shell = get_ipython()
real, finish_cell = {owner}.{name}, cells.finish_cell

def press():
    times.append(1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)  # Stop is heard in here

def armed(*args, **kwargs):
    cells.finish_cell = finish_cell
    {owner}.{name} = pressed
    return finish_cell(*args, **kwargs)

def pressed(*args, **kwargs):
    {owner}.{name} = real
    press()
    try:
        return real(*args, **kwargs)
    finally:
        press()

cells.finish_cell = armed
"""
LATE = {
    "as the message is written down": ("shell", "showtraceback"),
    "as the cell ends": ("shell.events", "trigger"),
    "as the kernel replies": ("shell.kernel", "finish_metadata"),
}


@pytest.fixture(scope="module")
def kernel():
    """
    Yield a kernel with two ranks.
    """
    with running_kernel() as kernel:
        assert kernel.run("from ddp_lessons import start_ranks\nranks = start_ranks(2)").status
        yield kernel


def press_in(kernel, owner, name):
    """
    Make the kernel send itself SIGINT before and after a call that follows the next `%%px` cell.

    The code runs in its own namespace, because code in the user's namespace counts as the
    learner's.

    Args:
        kernel: The kernel.
        owner, name: The object and the attribute of the function to wrap.
    """
    hooks = PRESS_IN.format(owner=owner, name=name)
    assert kernel.run(f"hooks = {{}}\nexec({hooks!r}, hooks)").status == "ok"


@pytest.mark.parametrize(("owner", "name"), LATE.values(), ids=LATE)
def test_stop_that_comes_late_loses_no_message_and_no_reply(kernel, owner, name):
    """
    A late SIGINT loses neither the cell's message nor its reply: a cell without a reply would stay
    `[*]` for ever.
    """
    press_in(kernel, owner, name)
    result = kernel.run("%%px\nimport time\ntime.sleep(60)", stop_after_s=(1.0,))
    assert result.ename == "CellStopped"
    assert result.evalue.startswith("Stopped: ranks 0 and 1 were at line 2")
    assert kernel.value("len(hooks['times'])") == 2


def test_stop_on_the_way_out_of_the_magic_loses_no_message(kernel):
    """
    A SIGINT while the magic returns does not replace the cell's error: the learner's code is on the
    stack then, but has not gone on.
    """
    hooks = """
from IPython.core.interactiveshell import InteractiveShell
import os, signal, time
real = InteractiveShell.run_cell_magic
def run_cell_magic(*args):
    InteractiveShell.run_cell_magic = real
    try:
        return real(*args)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
InteractiveShell.run_cell_magic = run_cell_magic
"""
    assert kernel.run(f"exec({hooks!r}, {{}})").status == "ok"
    result = kernel.run("%%px\nassert 0")
    assert result.ename == "RankRaised", result
    assert kernel.run("print(1)").text == "1\n"


def test_stop_ends_what_the_learner_does_after_a_cell_of_the_ranks(kernel):
    """
    Stop ends a loop of the learner's own after a cell of the ranks: the kernel ignores SIGINT only
    until the learner's code goes on.
    """
    result = kernel.run(
        "try:\n    get_ipython().run_cell_magic('px', '', 'assert 0')\n"
        "except Exception:\n    pass\nwhile True:\n    pass",
        stop_after_s=(4.0,),
    )
    assert result.ename == "KeyboardInterrupt"
    assert kernel.run("import time\ntime.sleep(60)", stop_after_s=(0.2,)).ename == (
        "KeyboardInterrupt"
    )


def test_stop_outside_of_a_kernel_is_left_as_it_was():
    """
    Outside of a kernel StopButton restores the previous handler of SIGINT, because no ipykernel
    would set it again.
    """
    before = signal.getsignal(signal.SIGINT)
    presses = []
    with StopButton(lambda: presses.append(1)):
        signal.raise_signal(signal.SIGINT)
    assert presses == [1]
    assert signal.getsignal(signal.SIGINT) is before
