"""
DDP Lessons: a course on PyTorch distributed training that is run, not read.
"""

from ddp_lessons.progress import join_board, leave_board, ok, predict
from ddp_lessons.ranks import start_ranks, stop_ranks

__all__ = ["join_board", "leave_board", "ok", "predict", "start_ranks", "stop_ranks"]

__version__ = "0.2.0"
