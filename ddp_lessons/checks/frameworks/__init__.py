"""
Exercise 16: what do frameworks add?

Legend: w ranks; a window of k micro-batches; B samples in each.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
