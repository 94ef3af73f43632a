"""
Exercise 12: what does one number for all ranks mean?

Legend: w ranks; rank r has n_r samples, n over all; C classes or channels.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
