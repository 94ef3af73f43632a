"""
Exercise 15: what if the model does not fit?

Legend: w ranks.
"""

from ddp_lessons.checks.beyond_ddp.sharded_linear import ShardedLinear

TASKS = (ShardedLinear,)
