"""
Exercise 15: what if the model does not fit?

Legend: w ranks; a mesh of d x t x p ranks, for data, tensor and pipeline.
"""

from ddp_lessons.checks.beyond_ddp.choose_mesh import choose_mesh
from ddp_lessons.checks.beyond_ddp.parallel_pair import ParallelPair

TASKS = (
    ParallelPair,
    choose_mesh,
)
