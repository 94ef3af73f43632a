"""
Exercise 13: which rank keeps the optimizer's state?

Legend: w ranks; P parameters of n_1, n_2, ... numbers, N in all.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
