"""
The culprit of a failed job, found in the output of torchrun and of the ranks.

The texts are those of real jobs, shortened.
"""

import pytest

from ddp_lessons.launch import exit_codes, last_error, recorded_error, root_cause, who_failed

BLOCK = """\
  time      : then
  host      : localhost
  rank      : {0} (local_rank: {0})
  exitcode  : {1} (pid: 4711) {2}
  error_file: <N/A>
"""
LOST = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "train.py", line 8, in <module>
[rank{0}]: ConnectionError: Connection closed by peer
"""
SURVIVED = 'Traceback (most recent call last):\n  File "a.py"\nOSError: busy\nfrom the disk\n'
RAISED = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: batch 17\n'
STOPPED = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15"


def report_of(root, *others):
    """
    Return torchrun's report of (rank, exit code) pairs. Its root cause comes first here.
    """
    names = {-15: "(SIGTERM)", -9: "(SIGKILL)"}
    blocks = [BLOCK.format(rank, code, names.get(code, "")) for rank, code in (*others, root)]
    head = "train.py FAILED\nFailures:\n[1]:\n" if others else "Failures:\n  <NO_OTHER_FAILURES>\n"
    return f"{head}{''.join(blocks[:-1])}Root Cause (first observed failure):\n[0]:\n{blocks[-1]}"


def test_report_is_read_as_it_stands():
    """
    The report is read as torchrun writes it: the root cause is last, below the other failures.
    """
    report = report_of((1, 3), (0, -15), (2, 1))
    assert exit_codes(report) == {0: -15, 2: 1, 1: 3}
    assert root_cause(report) == (1, 3)
    assert root_cause(report_of((2, -9))) == (2, -9)
    assert root_cause(STOPPED) is None


RECORDED = """\
  traceback : Traceback (most recent call last):
    File "train.py", line 6, in main
      raise ValueError("batch 17")
  ValueError: batch 17

============================================================
"""


@pytest.mark.parametrize(
    ("last_line", "found"),
    [
        (RECORDED, "ValueError: batch 17"),
        ("  traceback : Signal 9 (SIGKILL) received by PID 4711\n", None),
        ("  traceback : To enable traceback see: the manual\n", None),
    ],
)
def test_an_error_is_in_the_report_if_it_was_recorded(last_line, found):
    """
    A recorded error is read from the report only, and not from a rank's output before it.
    """
    assert recorded_error(RAISED + report_of((1, 1), (0, -15)) + last_line) == found
    assert recorded_error(RAISED) is None


def test_last_error_is_the_one_that_ended_a_rank():
    """
    The last error of a rank's output is the one that ended it. Errors above it did not.
    """
    assert last_error(RAISED) == "ValueError"
    assert last_error(SURVIVED + LOST.format(2)) == "ConnectionError"
    assert last_error("all is well\n") is None


@pytest.mark.parametrize(
    ("report", "logs", "found"),
    [
        (report_of((1, 1), (0, -15), (2, 1)), ["", RAISED, LOST.format(2)], (1, "raised")),
        (
            report_of((0, 1), (1, -15), (2, 1)),
            [LOST.format(0), RAISED, LOST.format(2)],
            (1, "raised"),
        ),
        (report_of((0, 1), (1, -15), (2, -15)), [LOST.format(0), SURVIVED, RAISED], (2, "raised")),
        (report_of((1, 3), (0, 1), (2, -15)), [LOST.format(0), "", ""], (1, "exited")),
        (report_of((2, -9), (0, 1), (1, 1)), [LOST.format(0), LOST.format(1), ""], (2, "killed")),
        (report_of((2, -6), (0, 1)), [LOST.format(0), "", SURVIVED], (2, "killed")),
        (report_of((1, 1), (0, 1), (2, -15)), [LOST.format(0), "", SURVIVED], (1, "exited")),
        (report_of((0, 1), (2, -15)), [LOST.format(0), "done", SURVIVED], (1, "left")),
        (report_of((0, 1), (2, 1)), [LOST.format(0), "done", LOST.format(2)], (1, "left")),
        (STOPPED, ["", "", ""], (None, "stopped")),
    ],
)
def test_who_failed_is_no_victim(report, logs, found):
    """
    The culprit is found also if the report's root cause is collateral, as in the second case, or
    does not list the culprit, as in the eighth.
    """
    assert who_failed(report, logs) == found
