"""
The cost of a collective: messages, bytes and seconds, by algorithm. Pure arithmetic, no torch.
"""

from ddp_lessons.costs.chunks import chunk_bounds, chunk_lengths
from ddp_lessons.costs.fit import Fit, Interval, fit
from ddp_lessons.costs.formulas import collective_s, critical_path, crossover_bytes
from ddp_lessons.costs.link import Link, RankCost, rank_costs, sent_bytes
from ddp_lessons.costs.pipelines import bubble_share, pipeline_sent_bytes
from ddp_lessons.costs.schedules import ALGORITHMS, Schedule, schedule
from ddp_lessons.costs.steps import StepModel, amdahl_speedup, overlapped_finish_s
from ddp_lessons.costs.transfers import Transfer

__all__ = [
    "ALGORITHMS",
    "Fit",
    "Interval",
    "Link",
    "RankCost",
    "Schedule",
    "StepModel",
    "Transfer",
    "amdahl_speedup",
    "bubble_share",
    "chunk_bounds",
    "chunk_lengths",
    "collective_s",
    "critical_path",
    "crossover_bytes",
    "fit",
    "overlapped_finish_s",
    "pipeline_sent_bytes",
    "rank_costs",
    "schedule",
    "sent_bytes",
]
