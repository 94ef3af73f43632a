"""
Exercise 10: find out why nothing happens.

Legend: w ranks; a dump is the stack of one rank, as faulthandler writes it.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
