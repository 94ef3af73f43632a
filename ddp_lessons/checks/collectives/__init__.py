"""
Exercise 02: the data that moves when ranks communicate.

Legend: n numbers in a tensor, w ranks.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
