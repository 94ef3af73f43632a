"""
Exercise 04: which rank sees which sample.

Legend: N samples, w ranks. A rank's share is the list of the numbers of its samples.
"""

from ddp_lessons.checks.samplers.balanced_shares import balanced_shares
from ddp_lessons.checks.samplers.exact_accuracy import exact_accuracy
from ddp_lessons.checks.samplers.resumable_sampler import ResumableSampler
from ddp_lessons.checks.samplers.shard_indices import shard_indices

TASKS = (
    shard_indices,
    exact_accuracy,
    ResumableSampler,
    balanced_shares,
)
