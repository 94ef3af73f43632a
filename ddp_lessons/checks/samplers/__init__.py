"""
Exercise 04: which rank sees which sample.

Legend: N samples, w ranks. A rank's share is the list of the numbers of its samples.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
