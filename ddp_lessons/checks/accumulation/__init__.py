"""
Exercise 07: when should ranks talk?

Legend: w ranks, k micro-batches in a window, G numbers in a gradient.
"""

from ddp_lessons.checks.accumulation.accumulate import accumulate
from ddp_lessons.checks.accumulation.clipped_window import clipped_window
from ddp_lessons.checks.accumulation.plateau_step import plateau_step
from ddp_lessons.checks.accumulation.train_epoch import train_epoch

TASKS = (
    accumulate,
    train_epoch,
    clipped_window,
    plateau_step,
)
