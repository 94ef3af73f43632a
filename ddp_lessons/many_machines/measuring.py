"""
Take the time of a batch, by each way to average: compute is sleep, messages are real.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from ..speed import least_step_s
from .averages import make_way

if TYPE_CHECKING:
    from .foretelling import Plan
    from .roads import Road


def measured_s(name: str, road: Road, plan: Plan) -> float:
    """
    Return the seconds of a batch that nothing has interrupted, on this rank.

    Collective: every rank must call it.

    Args:
        name: One of WAYS.
        road: A Road, with the links of the plan.
        plan: A Plan. Nothing is packed but what the way itself packs.

    Lesson: 17_many_machines.
    """
    average, every = make_way(name)
    gradient = torch.zeros(plan.num_bytes // 4)

    def window():
        for _ in range(every):
            time.sleep(plan.compute_s)
        average(gradient, road)

    return least_step_s(window) / every
