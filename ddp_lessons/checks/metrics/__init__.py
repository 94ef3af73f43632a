"""
Exercise 12: what does one number for all ranks mean?

Legend: w ranks; rank r has n_r samples, n over all; C classes or channels.
"""

from ddp_lessons.checks.metrics.macro_f1 import macro_f1
from ddp_lessons.checks.metrics.should_stop import should_stop
from ddp_lessons.checks.metrics.sync_backward import sync_backward
from ddp_lessons.checks.metrics.sync_forward import sync_forward

TASKS = (
    macro_f1,
    sync_forward,
    sync_backward,
    should_stop,
)
