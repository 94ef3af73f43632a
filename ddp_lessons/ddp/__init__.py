"""
Look inside torch's DistributedDataParallel: buckets, hooks, unused parameters, buffers.
"""

from .buffers import buffer_spread, pool_batch_norm
from .feedback import HalfPrecisionState, TopKState, half_precision_hook, top_k_hook
from .meter import ExactState, HookMeter, bytes_sent, exact_hook
from .reducer import (
    Bucket,
    BucketRecorder,
    Overlap,
    buckets_before_rebuild,
    overlap,
    parameter_bytes,
    ready_order,
    rebuilt_buckets,
)
from .unused import unused_by_rank, unused_parameters

__all__ = [
    "Bucket",
    "BucketRecorder",
    "ExactState",
    "HalfPrecisionState",
    "HookMeter",
    "Overlap",
    "TopKState",
    "buckets_before_rebuild",
    "buffer_spread",
    "bytes_sent",
    "exact_hook",
    "half_precision_hook",
    "overlap",
    "parameter_bytes",
    "pool_batch_norm",
    "ready_order",
    "rebuilt_buckets",
    "top_k_hook",
    "unused_by_rank",
    "unused_parameters",
]
