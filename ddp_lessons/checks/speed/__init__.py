"""
Exercise 11: where does a step's time go?

Legend: w ranks; a span is (kind, start_s, end_s); L a link's latency, B its bytes a second.
"""

from ddp_lessons.checks.speed.find_straggler import find_straggler
from ddp_lessons.checks.speed.predict_step import predict_step
from ddp_lessons.checks.speed.report_speedup import report_speedup
from ddp_lessons.checks.speed.split_step import split_step

TASKS = (
    split_step,
    find_straggler,
    predict_step,
    report_speedup,
)
