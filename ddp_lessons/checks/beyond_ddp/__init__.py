"""
Exercise 15: what if the model does not fit?

Legend: w ranks; a mesh of d x t x p ranks, for data, tensor and pipeline.
"""

from ddp_lessons.checks.beyond_ddp.choose_mesh import choose_mesh
from ddp_lessons.checks.beyond_ddp.parallel_pair import ParallelPair
from ddp_lessons.checks.beyond_ddp.sharded_linear import ShardedLinear
from ddp_lessons.checks.beyond_ddp.stage_row import stage_row

TASKS = (
    ShardedLinear,
    ParallelPair,
    stage_row,
    choose_mesh,
)
