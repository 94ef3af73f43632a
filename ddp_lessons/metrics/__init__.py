"""
One number for all ranks: that of one process which has all samples, whatever the split.

Read the files in this order:

- `naive` averages ranks' own numbers, to be compared with.
- `sums` adds up first and divides last: loss and perplexity.
- `confusion` counts in whole numbers: accuracy and F1.
- `median` finds the middle of all values: by gathering them, or by counting alone.
- `sync_batch_norm` normalises by the samples of all ranks, with a collective each way.
- `stopping` decides on all ranks together when training ends.
- `writing` lets one rank write what TensorBoard shows, and reads it back.
- `board` opens TensorBoard beside a notebook.
- `beside` lets a forked process try to validate, and ends it.
- `example` is what the lesson evaluates.

Lesson: 12_metrics.
"""

from .beside import ForkedProcess
from .board import Board, open_board
from .confusion import Confusion, accuracy_of, macro_f1
from .median import gathered_median, median_by_counting, whole_median
from .naive import mean_of_means, weighted_mean_of_means
from .stopping import EarlyStopping
from .sums import Mean, Perplexity
from .sync_batch_norm import SyncBatchNorm, all_rank_statistics, with_sync_batch_norm
from .writing import RankZeroWriter, read_scalars

__all__ = [
    "Board",
    "Confusion",
    "EarlyStopping",
    "ForkedProcess",
    "Mean",
    "Perplexity",
    "RankZeroWriter",
    "SyncBatchNorm",
    "accuracy_of",
    "all_rank_statistics",
    "gathered_median",
    "macro_f1",
    "mean_of_means",
    "median_by_counting",
    "open_board",
    "read_scalars",
    "weighted_mean_of_means",
    "whole_median",
    "with_sync_batch_norm",
]
