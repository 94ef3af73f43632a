"""
Exercise 16: what do frameworks add?

Legend: w ranks; a window of k micro-batches; B samples in each.
"""

from ddp_lessons.checks.frameworks.ported import ported
from ddp_lessons.checks.frameworks.what_changed import what_changed

TASKS = (
    ported,
    what_changed,
)
