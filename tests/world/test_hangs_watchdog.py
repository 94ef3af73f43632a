"""
The watchdog names the collective, the missing ranks and their lines, and is silent while ranks
work.
"""

import json
import math
import os
import sys
import threading
import traceback
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from waiting import HANGS_AFTER_S, wait_until
from worlds import run_world

from ddp_lessons.hangs import Note, Stall, Watchdog, end_job

LIMIT_S = 1.5


def wait_for_the_server(until):
    """
    Wait as a rank does that gets no batch.
    """
    assert until.wait(HANGS_AFTER_S)


def _meet(rank, world_size, name):
    """
    Wait, without a collective, until every rank's watchdog has reported: a rank that goes on
    removes its note.
    """
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{name} {rank}", "")
    store.wait([f"{name} {other}" for other in range(world_size)])


def _one_is_late(rank, world_size):
    stalls, until = [], threading.Event()

    def bark(stall):
        if stall.number == 3:  # a rank that gets no core may have been late before
            stalls.append(stall)
            _meet(rank, world_size, "barked")
            until.set()

    with Watchdog(LIMIT_S, on_stall=bark, grace_s=HANGS_AFTER_S):
        for step in range(3):
            if step == 2 and rank == world_size - 1:
                wait_for_the_server(until)
            dist.all_reduce(torch.ones(4))
        if rank != world_size - 1:
            wait_for_the_server(until)
    return stalls


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_watchdog_names_the_rank_that_did_not_come(world_size):
    """
    All ranks report the missing rank and the line at which it is.
    """
    last = world_size - 1
    for stalls in run_world(world_size, _one_is_late):
        stall = stalls[0]
        assert (stall.number, stall.absent) == (3, [last])
        lines = str(stall).splitlines()
        assert lines[0] == (
            "No new collective for 1.5 s. The last is number 3: all_reduce float[4]. "
            f"Missing: rank {last}."
        )
        assert lines[1].startswith("  rank 0 at test_hangs_watchdog.py:")
        assert lines[1].endswith(" in _one_is_late")
        assert lines[-1].endswith(" in wait_for_the_server")


def _slow_and_well(rank, world_size):
    stalls, again = [], threading.Event()

    def bark(stall):
        if stall.number % 2 == 0:  # other stalls are of a rank that got no core
            stalls.append(stall)
            _meet(rank, world_size, f"barked at {stall.number}")
            again.set()

    group = dist.new_group(list(range(world_size)))
    with Watchdog(LIMIT_S, on_stall=bark, group=group, grace_s=HANGS_AFTER_S):
        for pause in (0, 1, 0, 1):
            dist.all_reduce(torch.ones(2), group=group)
            if pause:
                wait_for_the_server(again)
                again.clear()
    return [(stall.number, stall.absent) for stall in stalls]


@pytest.mark.parametrize("world_size", [1, 2])
def test_watchdog_barks_once_a_pause_and_goes_on(world_size):
    """
    The watchdog reports once in each pause and goes on watching. In a pause of all ranks none is
    missing.
    """
    for told in run_world(world_size, _slow_and_well):
        assert (2, []) in told
        assert told[-1] == (4, [])


class _Clock:
    def __init__(self):
        self.now_s, self.num_looks = 0.0, 0

    def monotonic(self):
        self.num_looks += 1
        return self.now_s


def _silent(rank, world_size):
    stalls, clock = [], _Clock()
    with (
        mock.patch("ddp_lessons.hangs.watchdog.time", clock),
        Watchdog(LIMIT_S, on_stall=stalls.append),
    ):
        for _ in range(5):
            dist.all_reduce(torch.ones(2))
            seen = clock.num_looks + 2  # the next poll may have begun before
            wait_until(lambda seen=seen: clock.num_looks >= seen, HANGS_AFTER_S, "a look")
            clock.now_s += 0.9 * LIMIT_S
    return stalls


def test_watchdog_is_silent_while_ranks_work():
    """
    The watchdog is silent while ranks work: users turn a watchdog off that gives false alarms.
    """
    assert run_world(2, _silent) == [[], []]


def _alone(rank, world_size):
    dist.barrier()
    stalls, until = [], threading.Event()
    if rank == 0:
        with Watchdog(LIMIT_S, on_stall=lambda stall: (stalls.append(stall), until.set())):
            wait_for_the_server(until)
    dist.barrier()
    return [(stall.absent, str(stall)) for stall in stalls]


def test_watchdog_tells_of_ranks_that_say_nothing():
    """
    A rank whose process has ended, or has stopped, leaves no note. The watchdog reports that.
    """
    ((absent, text),) = run_world(3, _alone)[0]
    assert absent == [1, 2]
    assert text.splitlines()[2] == "  rank 1 says nothing: it has ended, or stands still"


def _a_while_behind(rank, world_size):
    dist.barrier()
    stalls, until = [], threading.Event()
    asks = dist.distributed_c10d._get_default_store()
    with Watchdog(
        LIMIT_S if rank else math.inf,
        on_stall=lambda stall: (stalls.append(stall), until.set()),
        grace_s=HANGS_AFTER_S,
    ) as watchdog:
        if rank == 0:
            asks.wait(["rank 1 asks"])  # rank 0 computes, and is late
            work = dist.all_reduce(torch.ones(1), async_op=True)
            watchdog.limit_s = LIMIT_S
        else:
            _wait_until_it_asks(watchdog, True)
            asks.set("rank 1 asks", "")
        wait_for_the_server(until)
    work.wait() if rank == 0 else dist.all_reduce(torch.ones(1))
    return [(stall.number, stall.absent) for stall in stalls]


def test_watchdog_waits_for_the_note_of_a_rank_that_is_behind():
    """
    The first watchdog to report may belong to a rank that waits for none, since the other came
    later to the collective that hangs. It therefore waits for that rank's note.
    """
    for told in run_world(2, _a_while_behind):
        assert told == [(2, [1])]


def _wait_until_it_asks(watchdog, asks):
    def is_as_wanted():
        stack = traceback.walk_stack(sys._current_frames()[watchdog._thread.ident])
        return asks == any(frame.f_code.co_name == "_notes" for frame, _ in stack)

    wait_until(is_as_wanted, HANGS_AFTER_S, "the watchdog")


def _over_meanwhile(rank, world_size, how):
    dist.barrier()
    stalls = []
    if rank == 0:  # rank 1 has no watchdog, and leaves no note
        with Watchdog(0.1, on_stall=stalls.append, grace_s=math.inf) as watchdog:
            _wait_until_it_asks(watchdog, True)
            watchdog.limit_s = math.inf  # the watchdog asks for notes once
            if how == "goes on":
                dist.barrier()
                _wait_until_it_asks(watchdog, False)
    elif how == "goes on":
        dist.barrier()
    return stalls


@pytest.mark.parametrize("how", ["goes on", "is left"])
def test_watchdog_that_waits_for_notes_lets_go_when_the_stall_is_over(how):
    """
    A stall that has ended is not reported, and leaving the block does not wait for the end of the
    grace time.
    """
    assert run_world(2, _over_meanwhile, how)[0] == []


def test_stall_says_when_calls_differ_or_there_were_none():
    """
    A stall says whether calls differ or none was made: calls of one number with different names are
    another way to hang.
    """
    one, other = Note(2, "reduce float[1]", "a.py:1 in f"), Note(2, "barrier", "a.py:2 in f")
    stall = Stall(5, {0: one, 1: other, 2: other})
    assert stall.absent == []
    assert "number 2: reduce float[1] against barrier. Missing: nobody." in str(stall)
    none = Note(0, "", "no line of its own")
    assert "number 0: none. Missing: nobody." in str(Stall(1, {0: none, 1: none}))
    assert json.loads(json.dumps(vars(none))) == vars(none)


def test_end_job_ends_one_rank_which_tells_why(monkeypatch, capsys):
    """
    One rank reports and exits, and the launcher ends the others. A report of each rank would be the
    same.
    """
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    came, late = Note(2, "barrier", "a.py:1 in f"), Note(1, "barrier", "a.py:2 in f")
    stall = Stall(1, {0: late, 1: came, 2: came})
    for rank in range(3):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        end_job(stall)
    assert ended == [1]
    assert capsys.readouterr().out == f"{stall}\n"
