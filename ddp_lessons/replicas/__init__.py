"""
DDP from scratch in four steps that share their methods: naive, flat, bucketed, overlapped.

    NaiveReplica       one all-reduce a parameter, after backward
    FlatReplica        one all-reduce for all of them, after backward
    BucketedReplica    one all-reduce a bucket of some MiB, after backward
    OverlappedReplica  one all-reduce a bucket, as soon as its last gradient is ready

and, for ranks of one machine, `SharedMemoryReplica`: overlapped as well, but nothing is sent.
Each wraps a module as `DistributedDataParallel` does, and the training loop stays as it is.
"""

from .alike import check_alike, num_different, of_all_ranks, replica_distance
from .base import Replica
from .buckets import broadcast_from_first, plan_buckets
from .overlapped import OverlappedReplica
from .shared import SharedMemoryReplica
from .simple import BucketedReplica, FlatReplica, NaiveReplica

__all__ = [
    "BucketedReplica",
    "FlatReplica",
    "NaiveReplica",
    "OverlappedReplica",
    "Replica",
    "SharedMemoryReplica",
    "broadcast_from_first",
    "check_alike",
    "num_different",
    "of_all_ranks",
    "plan_buckets",
    "replica_distance",
]
