"""
Exercise 07: when should ranks talk?

Legend: w ranks, k micro-batches in a window, G numbers in a gradient.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
