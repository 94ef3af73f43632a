"""
Stack dumps of processes that hang: how they are read, and how the odd rank is found.
"""

import faulthandler
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.hangs import Frame, called, look, odd_frames, own_frames, read_stack
from ddp_lessons.hangs.stacks import is_of_a_library, own_line, read_stacks

DUMP = """\
Thread 0x00007f5a00000001 (most recent call first):
  File "/usr/lib/threading.py", line 359 in wait
  File "/usr/lib/threading.py", line 1002 in _bootstrap

Current thread 0x00007f5a00000002 (most recent call first):
  File "/x/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/x/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/job.py", line 7 in average
  File "/home/me/job.py", line ??? in <module>
"""
SCRIPT = """\
import faulthandler, itertools, signal, sys, time
faulthandler.register(signal.SIGUSR1, open(sys.argv[1], "w"), all_threads=False)
def stays():
    time.sleep(600)
def moves():
    for n in itertools.count():  # each turn is a line further down
        exec(compile("\\n" * n + "time.sleep(0.01)", "moving.py", "exec"), globals())
print("ready", flush=True)
"""


def frames(*lines):
    """
    Return a stack with frames of a script, innermost first, below a library's frame.
    """
    return [Frame("/x/lib.py", 1, "f"), *(Frame("/y/job.py", line, "g") for line in lines)]


def test_read_stack_takes_the_main_thread_of_the_last_dump():
    """
    The main thread is read from the last dump. faulthandler writes it last, whichever thread wrote
    the dump.
    """
    both = read_stacks(DUMP + "\n" + DUMP)
    assert len(both) == 4
    stack = read_stack(DUMP)
    assert both[3] == stack
    assert [frame.line for frame in stack] == [3252, 83, 7, 0]
    assert str(stack[2]) == "job.py:7 in average"
    assert read_stack("") == []
    assert read_stack('  File "a.py", line 1 in f') == []


def test_called_names_what_the_own_line_has_called():
    """
    `called` names the function that the script's line has called, and skips the wrapper that torch
    puts around its calls.
    """
    stack = read_stack(DUMP)
    assert called(stack, "job.py") == "all_reduce"
    assert called(stack[2:], "job.py") == ""
    assert called(stack, "other.py") == ""
    assert [frame.line for frame in own_frames(stack, "job.py")] == [7, 0]


def test_frames_know_their_text_and_whose_they_are():
    """
    A frame knows its line's text and whether it is a library's, so that a reader need not look up a
    line number.
    """
    line = frames.__code__.co_firstlineno
    frame = Frame(__file__, line, "<module>")
    assert frame.code == "def frames(*lines):"
    assert Frame("/nowhere/x.py", 1, "f").code == ""
    assert own_frames([Frame(threading.__file__, 1, "wait"), frame]) == [frame]
    assert is_of_a_library("<frozen runpy>")
    assert is_of_a_library(pytest.__file__)


def test_odd_frames_name_the_line_at_which_a_rank_left_the_others():
    """
    The odd rank's frame is the line at which it left the others' path, not a function that all of
    them call.
    """
    stacks = {0: frames(12, 20, 40), 1: frames(12, 20, 40), 2: frames(12, 30, 41)}
    assert odd_frames(stacks, "job.py") == {2: Frame("/y/job.py", 30, "g")}
    stacks[3] = frames(5, 40)
    assert odd_frames(stacks, "job.py") == {}  # two of four are not a majority
    stacks[4] = frames(12, 20, 40)
    assert {rank: frame.line for rank, frame in odd_frames(stacks, "job.py").items()} == {
        2: 30,
        3: 5,
    }
    assert odd_frames({0: frames(1), 1: frames(2)}, "job.py") == {}
    assert odd_frames({0: frames(1), 1: frames(1)}, "job.py") == {}
    assert odd_frames({0: frames(1, 2), 1: frames(1, 2), 2: frames(2)}, "job.py") == {2: None}


def top(stack):
    """
    Return the innermost function of a stack, or None.
    """
    return stack and stack[0].function


@pytest.mark.parametrize("function", ["stays", "moves"])
def test_look_tells_who_stays_from_who_moves(tmp_path, function):
    """
    `look` compares two dumps to distinguish a process that hangs from one that works, because one
    dump of both looks alike.
    """
    script, dump = tmp_path / "script.py", tmp_path / "dump.txt"
    script.write_text(f"{SCRIPT}{function}()\n")
    command = [sys.executable, str(script), str(dump)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            if function == "stays":
                wait_until(lambda: top(look(process.pid, dump)) == "stays", HANGS_AFTER_S, "it")
            else:  # between two dumps the process may have had no core
                wait_until(lambda: look(process.pid, dump, 1) is None, HANGS_AFTER_S, "it")
        finally:
            process.kill()


def test_look_gives_up_on_a_process_that_does_not_answer(tmp_path):
    """
    `look` returns None for a process that does not answer, such as a stopped one.
    """
    dump = tmp_path / "dump.txt"
    dump.write_text("")
    code = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print(1, flush=True)"
    command = [sys.executable, "-c", f"{code}; import time; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdout.readline()
            assert look(process.pid, dump, patience_s=0.2) is None
        finally:
            process.kill()


def test_own_line_of_a_thread_that_waits_in_a_library():
    """
    The line of a thread that waits in a library is that of the script's call, not one of
    threading.py.
    """
    waits, ready = threading.Event(), threading.Event()

    def wait_here():
        ready.set()
        waits.wait()

    thread = threading.Thread(target=wait_here)
    thread.start()
    try:
        ready.wait()
        while own_line(thread.ident).line == wait_here.__code__.co_firstlineno + 1:
            pass
        frame = own_line(thread.ident)
        assert (frame.name, frame.function) == (Path(__file__).name, "wait_here")
        assert frame.code == "waits.wait()"
    finally:
        waits.set()
        thread.join()
    assert own_line(thread.ident) is None


def test_dump_of_faulthandler_itself_is_read(tmp_path):
    """
    A dump of this Python's own faulthandler is read.
    """
    with (tmp_path / "dump.txt").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stack = read_stack(file.read())
    assert own_frames(stack, Path(__file__).name)[0].function == (
        "test_dump_of_faulthandler_itself_is_read"
    )
