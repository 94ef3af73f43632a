"""
Find out why nothing happens: where each rank is, what it called last, and who is missing.

Legend: rank r of w. A stack is a list of frames, innermost first. A dump is the text that
faulthandler writes of one or more stacks. Collectives of a group are numbered from 1.

    stacks         where each rank is: read dumps, and find who is somewhere else than the others
    records        what each rank called: torch's flight recorder, and the first difference
    fingerprints   compare what ranks are about to call, before they wait
    naive          a watchdog of twenty lines: no heartbeat, so it writes the stacks
    watchdog       one that says which collective it is, who is missing, and where that rank is
    words          errors in one line, without what differs from run to run

Lesson: 10_hangs.
"""

from ddp_lessons.hangs.fingerprints import Call, agree, odd_ranks
from ddp_lessons.hangs.naive import NaiveWatchdog
from ddp_lessons.hangs.records import (
    Difference,
    Record,
    first_differences,
    flight_record,
    load_record,
    save_record,
)
from ddp_lessons.hangs.stacks import Frame, called, look, odd_frames, own_frames, read_stack
from ddp_lessons.hangs.watchdog import Note, Stall, Watchdog, end_job
from ddp_lessons.hangs.words import attempt, short

__all__ = [
    "Call",
    "Difference",
    "Frame",
    "NaiveWatchdog",
    "Note",
    "Record",
    "Stall",
    "Watchdog",
    "agree",
    "attempt",
    "called",
    "end_job",
    "first_differences",
    "flight_record",
    "load_record",
    "look",
    "odd_frames",
    "odd_ranks",
    "own_frames",
    "read_stack",
    "save_record",
    "short",
]
