"""
The crash log: the line at which a rank died, written by processes that really die.
"""

import os
import signal
import subprocess
import sys

import pytest

from ddp_lessons.ranks.diagnosis.death_report import parse_crash_log
from ddp_lessons.ranks.kernel.agent_client import read_stack_file
from ddp_lessons.ranks.messages.stack_files import stack_file

DIE = """
import os, sys
from ddp_lessons.ranks.rank.crash_log import write_crash_log
write_crash_log(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))
source = "import ctypes, os, signal\\n\\n" + sys.argv[2]
exec(compile(source, "/tmp/ipykernel_4711/1.py", "exec"), {})
"""


def die(folder, line):
    """
    Run a process that dies in the third line of its cell, and return its exit code.
    """
    path = stack_file(folder, 2)
    return subprocess.run(
        [sys.executable, "-c", DIE, os.fspath(path), line],
        stderr=subprocess.DEVNULL,
    ).returncode


@pytest.mark.parametrize(
    ("line", "code", "is_own_will"),
    [
        ("ctypes.string_at(0)", -signal.SIGSEGV, False),
        ("os.abort()", -signal.SIGABRT, False),
        ("os._exit(5)", 5, True),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, True),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, True),
    ],
)
def test_last_words_have_the_line(tmp_path, line, code, is_own_will):
    """
    The crash log holds the line at which the rank died. The last snapshot, up to 0.2 s older, often
    shows another line.
    """
    assert die(tmp_path, line) == code
    assert parse_crash_log(read_stack_file(tmp_path, 2)) == (3, is_own_will)


@pytest.mark.parametrize(
    "line",
    [
        "os.fork() or os._exit(5)",
        "os.fork() or os.abort()",
        "os.kill(os.getpid(), 0)",
        "os.kill(os.fork() or os.getpid(), 0)",
    ],
)
def test_last_words_are_the_ranks_own(tmp_path, line):
    """
    Only the rank's own death is logged: not that of its children, and not signal 0, which ends no
    process.
    """
    assert die(tmp_path, line) == 0
    assert parse_crash_log(read_stack_file(tmp_path, 2)) == (None, False)


def test_last_words_of_a_rank_that_left_none(tmp_path):
    """
    Without a crash log, as after a kill from outside, no line is known and none is invented.
    """
    assert parse_crash_log(read_stack_file(tmp_path, 2)) == (None, False)
    stack_file(tmp_path, 2).write_text(
        'Thread 0x1 (most recent call first):\n  File "/tmp/ipykernel_1/1.py", line 4 in <module>\n'
    )
    assert parse_crash_log(read_stack_file(tmp_path, 2)) == (None, False)
