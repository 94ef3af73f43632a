"""
The judgement whether a server holds a room of learners, by what two used: `doctor --room 30`.

The functions are pure: they take measurements and return findings, like those of `doctor.py`.
"""

import math
from dataclasses import dataclass

from ddp_lessons.course.doctor.doctor import FAIL, GIB, OK, WARN, Finding

MIB = 1 << 20
SERVER_BYTES = 150 * MIB
"""
Memory of one learner's JupyterLab server under a hub with a page open, without its kernels.
Measured: 137 to 151 MiB.
"""
HUB_BYTES = 200 * MIB
"""
Memory of the hub and its proxy together. Measured with three learners: 178 MiB.
"""
BUSY_SHARE = 0.5
"""
Share of all cores, averaged over a lesson, up to which learners hardly notice each other.
"""
LONG_S = 60.0
"""
Seconds that learners wait without asking what is wrong, if all run the dearest cell at once.
"""


@dataclass(frozen=True)
class Learner:
    """
    The resources that one learner needs for a lesson.

    Args:
        stem: The lesson id.
        minutes: Minutes that the lesson takes, with time to read and think.
        memory_bytes: Peak memory of the kernel and its child processes; shared pages are divided.
        cpu_s: Core seconds of all cells together.
        dearest_cpu_s: Core seconds of the dearest cell, the one that needs most of them.
        dearest_cell: Number of the dearest cell among the code cells, from 1.
    """

    stem: str
    minutes: float
    memory_bytes: int
    cpu_s: float
    dearest_cpu_s: float
    dearest_cell: int


@dataclass(frozen=True)
class ServerResources:
    """
    The resources that a server has for a room of learners.

    Args:
        num_cores: Number of its cores.
        free_bytes: Memory in bytes that was free before the measurement.
        others_stop_at: Path that keeps other users from running this Python, or "".
    """

    num_cores: int
    free_bytes: int
    others_stop_at: str = ""


def judge_room(num_learners, learner, server):
    """
    Judge whether a server holds a room of learners.

    Args:
        num_learners: Number of learners in the room.
        learner: The Learner that was measured.
        server: The ServerResources.

    Returns:
        list[Finding]: One for each thing that a room needs.
    """
    return [
        judge_others(server),
        judge_room_memory(num_learners, learner, server),
        judge_room_cores(num_learners, learner, server),
        judge_dearest_cell(num_learners, learner, server),
    ]


def judge_others(server):
    """
    Judge whether other users of this system can run the course's Python.
    """
    if not server.others_stop_at:
        return Finding("Python", OK, "every user of this system can run it")
    mend = "Set the course up anew with the system's: make clean setup PYTHON=/usr/bin/python3"
    return Finding("Python", FAIL, f"only its owner can run it: {server.others_stop_at}", mend)


def seats(learner, server):
    """
    Return how many learners the server's free memory holds.
    """
    return max(0, int((server.free_bytes - HUB_BYTES) // _needed_bytes(learner)))


def _needed_bytes(learner):
    return learner.memory_bytes + SERVER_BYTES


def judge_room_memory(num_learners, learner, server):
    """
    Judge whether hub, proxy and all learners, each with the lesson's ranks, fit into memory.
    """
    each_bytes = _needed_bytes(learner)
    needed_bytes = HUB_BYTES + num_learners * each_bytes
    found = (
        f"{num_learners} x {each_bytes / MIB:.0f} MiB and the hub: {needed_bytes / GIB:.1f} GiB, "
        f"of {server.free_bytes / GIB:.1f} GiB that are free"
    )
    if needed_bytes <= server.free_bytes:
        return Finding("memory", OK, found)
    lacking = math.ceil((needed_bytes - server.free_bytes) / GIB)
    mend = f"Give it {lacking} GiB more, or seat {seats(learner, server)} learners, such as pairs."
    return Finding("memory", FAIL, found, mend)


def judge_room_cores(num_learners, learner, server):
    """
    Judge the share of all cores that a room takes while it works through the lesson.
    """
    taken = num_learners * learner.cpu_s / (60 * learner.minutes)
    share = taken / server.num_cores
    found = (
        f"{learner.stem} takes {learner.cpu_s:.0f} core seconds in {learner.minutes:.0f} min: "
        f"{share:.0%} of {_cores(server.num_cores)}"
    )
    wanted = math.ceil(taken / BUSY_SHARE)
    mend = f"Give it {_cores(wanted)}, or have fewer screens, such as one for each pair."
    if share > 1:
        return Finding("cores", FAIL, found, mend)
    if share > BUSY_SHARE:
        return Finding("cores", WARN, found, mend)
    return Finding("cores", OK, found)


def judge_dearest_cell(num_learners, learner, server):
    """
    Judge how long learners wait if all of them run the dearest cell at the same moment.
    """
    seconds = num_learners * learner.dearest_cpu_s / server.num_cores
    found = (
        f"cell {learner.dearest_cell} takes {learner.dearest_cpu_s:.1f} core seconds; "
        f"run by all at once it takes {seconds:.0f} s"
    )
    if seconds <= LONG_S:
        return Finding("all at once", OK, found)
    mend = "Say when to run it, a third of the room at a time, or give the server more cores."
    return Finding("all at once", WARN, found, mend)


def _cores(number):
    return "1 core" if number == 1 else f"{number} cores"
