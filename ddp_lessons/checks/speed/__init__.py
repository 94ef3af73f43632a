"""
Exercise 11: where does a step's time go?

Legend: w ranks; a span is (kind, start_s, end_s); L a link's latency, B its bytes a second.
"""

from ddp_lessons.checks.kit.task_registry import tasks_in

globals().update(tasks_in(__name__))
