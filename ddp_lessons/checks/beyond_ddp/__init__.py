"""
Exercise 15: what if the model does not fit?

Legend: w ranks; a mesh of d x t x p ranks, for data, tensor and pipeline.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
