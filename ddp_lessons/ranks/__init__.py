"""
Ranks for a notebook: launch, place, guard, diagnose, recover. ipyparallel is the engine room.
"""

from ddp_lessons.ranks.kernel.session import current_ranks, start_ranks, stop_ranks

__all__ = ["current_ranks", "start_ranks", "stop_ranks"]
