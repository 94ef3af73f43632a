"""
Exercise 13: which rank keeps the optimizer's state?

Legend: w ranks; P parameters of n_1, n_2, ... numbers, N in all.
"""

from ddp_lessons.checks.sharded_optimizer.foretell import foretell
from ddp_lessons.checks.sharded_optimizer.owned_state import OwnedState
from ddp_lessons.checks.sharded_optimizer.owners_of import owners_of
from ddp_lessons.checks.sharded_optimizer.sharded_optimizer import ShardedOptimizer

TASKS = (
    owners_of,
    ShardedOptimizer,
    OwnedState,
    foretell,
)
