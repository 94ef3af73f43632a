"""
Exercise 09: how does a cell become a job?

Legend: w ranks; a life is the time from a start of all ranks to the next; a node is a machine.
"""

from ddp_lessons.checks.launch.batch_file import batch_file
from ddp_lessons.checks.launch.find_place import find_place
from ddp_lessons.checks.launch.survive import survive
from ddp_lessons.checks.launch.who_failed import who_failed

TASKS = (
    find_place,
    survive,
    batch_file,
    who_failed,
)
