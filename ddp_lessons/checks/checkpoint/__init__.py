"""
Exercise 08: the state that must be saved so that nothing is lost.

Legend: w ranks; a tensor of n rows of which rank r holds some; step s is made when s - 1 steps are
done.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
