"""
Exercise 06: what does DistributedDataParallel do for you?

Legend: w ranks; N numbers in all gradients; S steps; C channels.
"""

from ddp_lessons.checks.ddp.find_unused import find_unused
from ddp_lessons.checks.ddp.half_hook import half_hook
from ddp_lessons.checks.ddp.pool_statistics import pool_statistics
from ddp_lessons.checks.ddp.scripts import scripts

TASKS = (
    half_hook,
    find_unused,
    pool_statistics,
    scripts,
)
