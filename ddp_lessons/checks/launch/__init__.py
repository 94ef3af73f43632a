"""
Exercise 09: how does a cell become a job?

Legend: w ranks; a life is the time from a start of all ranks to the next; a node is a machine.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
