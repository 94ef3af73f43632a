"""
Tests that idle ranks are parked: they end after the minutes that a teacher sets, with a message.
"""

import pytest
from kernels import running_kernel
from processes import new_mark, wait_until_gone
from waiting import comes_true, wait_until

NAME = "DDP_LESSONS_PARK_AFTER"
SHORT_MIN = "0.05"
START = "from ddp_lessons import start_ranks\nranks = start_ranks(2, device='cpu')\n%px x = 7"


@pytest.mark.timeout(180)
def test_parked_ranks_are_gone_and_say_so():
    """
    Parked ranks are gone, which returns their memory to other learners, and the next cell says why
    and what to do.
    """
    mark = new_mark()
    with running_kernel(**mark, **{NAME: SHORT_MIN}) as kernel:
        assert kernel.run(START).status == "ok"
        wait_until_gone(mark, 30, but=(kernel.pid,))
        told = kernel.run("%px print(x)")
        assert (told.status, told.ename) == ("error", "RanksGone")
        assert told.evalue == (
            "The ranks were parked: they end, and their variables with them, when no cell is run "
            f"for {SHORT_MIN} min. Run start_ranks() again, then the cells that you need."
        )
        assert kernel.value("repr(ranks)") == "2 ranks, parked"
        checked = kernel.run("from ddp_lessons.checks import ranks as check\ncheck.my_items()")
        assert checked.evalue == told.evalue
        again = kernel.run(f"{START}\nprint('ready')")
        assert again.text.startswith(f"{SHORT_MIN} min without a cell had ended the ranks before.")
        assert "2 ranks ready" in again.text
    wait_until_gone(mark, 10)


@pytest.mark.timeout(180)
def test_ranks_that_train_unwatched_are_not_parked():
    """
    Ranks that run a cell of `--noblock` are not parked: a learner may read while a long training
    runs.
    """
    with running_kernel(**{NAME: SHORT_MIN}) as kernel:
        assert kernel.run(START).status == "ok"
        kernel.run("%%px --noblock\nimport time\ntime.sleep(8)\ny = x")
        # Ask the kernel nothing meanwhile: any request would count as a cell.
        gone = comes_true(lambda: not kernel.manager.is_alive(), 6)
        assert not gone
        wait_until(lambda: kernel.value("not ranks.client.outstanding"), 30, "the training")
        assert kernel.run("%px print(y)").text == "[0] 7\n[1] 7\n"


@pytest.mark.timeout(180)
def test_ranks_are_not_parked_unless_a_teacher_says_so():
    """
    Without a setting no ranks are parked, since at home no other user needs the memory. A setting
    that is no number raises BadInput at the start.
    """
    with running_kernel() as kernel:
        assert kernel.run(START).status == "ok"
        assert kernel.value("ranks._idle_watch is None")
    with running_kernel(**{NAME: "half an hour"}) as kernel:
        told = kernel.run(START)
        assert told.ename == "BadInput"
        assert told.evalue.startswith(f"Wrong setting: {NAME} must be a number above 0 (got 'half")
        assert kernel.run("start_ranks(2, device='cpu')").ename == "BadInput"
