"""
The job of task 10.1 is dumped when it hangs, and a library's line is told as one.
"""

import sys
import threading

import pytest
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.checks.hangs import hanging_jobs
from ddp_lessons.checks.hangs.hanging_jobs import HELPER, SCRIPT, _dump_when_it_waits, incidents
from ddp_lessons.checks.kit import Case
from ddp_lessons.checks.kit.finding import find_task
from ddp_lessons.checks.kit.inside.seen import Call, Seen
from ddp_lessons.checks.kit.judging import Played
from ddp_lessons.errors import WrongAnswer

CASE = Case(4, {"faults": ["waits for a batch"]}, seed=3)
(INCIDENT,) = incidents(CASE)
CULPRIT = INCIDENT.culprit
WAITING = next(rank for rank in range(4) if rank != CULPRIT)


def dump_of(*frames):
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join(["Thread 0x00007f0000000001 (most recent call first):", *lines, ""])


def refused(who, line):
    """
    Judge (who, line) for a job of which each rank waits at another line of a library.
    """
    main = ("/job/" + SCRIPT, 9001, "main")
    dumps = [
        dump_of(
            (f"/lib/queue{rank}.py", 7000 + rank, "get"), ("/job/" + SCRIPT, 8000, "train"), main
        )
        for rank in range(4)
    ]
    dumps[CULPRIT] = dump_of(
        ("/lib/queue.py", 7009, "get"),
        ("/job/" + HELPER, 6000, "fetch"),
        ("/job/" + SCRIPT, INCIDENT.line, "load"),
        main,
    )
    seen = [Seen(rank, [Call(before=(), result=(who, line))], [dumps]) for rank in range(4)]
    task = find_task("10.1")
    with pytest.raises(WrongAnswer) as caught:
        task.judge(Played(task, CASE, seen, [""] * 4))
    return caught.value


@pytest.mark.parametrize(
    ("who", "line", "mistake", "fact"),
    [
        (CULPRIT, 7009, "library-line", "line 7009 is a library's"),
        (WAITING, 7000 + WAITING, "library-line", f"names rank {WAITING}, and line 700"),
        (CULPRIT, 6000, "other-script", f"line 6000 is one of {HELPER}"),
        (WAITING, 8000, "waiting-rank", f"it names rank {WAITING}."),
        (WAITING, 1, "waiting-rank", f"it names rank {WAITING}."),
        (-1, 8000, "waiting-rank", "it names rank -1."),
        (4, 8000, "waiting-rank", "it names rank 4."),
        (CULPRIT, 9001, "shared-line", "other ranks' dumps hold line 9001"),
        (CULPRIT, 1, "values", "line 1 is in no dump of that rank"),
    ],
)
def test_hint_tells_what_the_line_is_of(who, line, mistake, fact):
    """
    Whoever takes lines of all files may be led to any rank: where each waits there is luck.
    """
    error = refused(who, line)
    assert error.mistake == mistake
    assert fact in str(error)


@pytest.mark.parametrize("pause_s", [0, 0.001, 2])
def test_a_job_that_moves_is_not_dumped(pause_s):
    """
    On its way to where it waits, a thread may show the same stack at look after look.

    One that pauses for 2 s has no turn on a core from look to look, too.
    """
    goes_on, ends = threading.Event(), threading.Event()

    def moves():
        while not goes_on.wait(pause_s):
            pass

    def train():
        moves()
        ends.wait()

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    threading.Timer(0.2, goes_on.set).start()
    dump = _dump_when_it_waits(thread, "in train")
    ends.set()
    thread.join(HANGS_AFTER_S)
    assert goes_on.is_set()
    assert "in moves" not in dump


def test_a_job_that_goes_on_while_it_is_looked_at_is_looked_at_again(monkeypatch):
    """
    A stack is read frame by frame, and the thread does not stand still for it.
    """
    goes_on, is_further, ends = (threading.Event() for _ in range(3))
    dump = hanging_jobs._dump

    def before():
        goes_on.wait()

    def train():
        before()
        is_further.set()
        ends.wait()

    def dump_and_let_go_on(thread, frame):
        told = dump(thread, frame)
        goes_on.set()
        assert is_further.wait(HANGS_AFTER_S)
        return told

    monkeypatch.setattr(hanging_jobs, "_dump", dump_and_let_go_on)
    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    waits = hanging_jobs._waits
    wait_until(lambda: waits(sys._current_frames()[thread.ident]), HANGS_AFTER_S, "the first wait")
    told = _dump_when_it_waits(thread, "in train")
    ends.set()
    thread.join(HANGS_AFTER_S)
    assert "in before" not in told
