"""
Exercise 14: what if nobody waits?

Legend: w ranks; G numbers in the trained weights; k workers of a server.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
