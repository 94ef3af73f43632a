"""
Which rank sees which sample.

Read the files in this order:

- `shards` divides an epoch's order between ranks as torch does, and shows what it repeats.
- `evaluation` counts every sample once, and adds the counts up over ranks.
- `resumable` goes on in the middle of an epoch.
- `balanced` gives fast ranks more samples and all ranks the same number of steps.

Lesson: 04_samplers.
"""

from .balanced import BalancedBatchSampler, balanced_shares, gather_throughputs
from .evaluation import ExactSampler, exact_accuracy, sum_counts
from .resumable import ResumableSampler
from .shards import ShardSampler, epoch_order, shard_indices, shard_repeats

__all__ = [
    "BalancedBatchSampler",
    "ExactSampler",
    "ResumableSampler",
    "ShardSampler",
    "balanced_shares",
    "epoch_order",
    "exact_accuracy",
    "gather_throughputs",
    "shard_indices",
    "shard_repeats",
    "sum_counts",
]
