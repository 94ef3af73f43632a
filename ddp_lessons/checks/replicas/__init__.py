"""
Exercise 05: how replicas stay equal.

Legend: w ranks; m micro-batches in a step. A gradient table is a dict from the name of each
parameter to its gradient, a tensor or None, in the order of `named_parameters`.
"""

from ddp_lessons.checks.replicas.average_gradients import average_gradients
from ddp_lessons.checks.replicas.overlapped_replica import OverlappedReplica
from ddp_lessons.checks.replicas.plan_buckets import plan_buckets
from ddp_lessons.checks.replicas.start_equal import start_equal

TASKS = (
    start_equal,
    average_gradients,
    plan_buckets,
    OverlappedReplica,
)
