"""
What the checks of lesson 11 share: steps that really run on the ranks, and numbers read off them.

What a rank computes is a sleep of drawn length, so that the answer hangs on no core. What is judged
are the times that were measured: whatever a busy machine made of a sleep, they say so.
"""

import math
import time

import torch
import torch.distributed as dist

from ddp_lessons.speed import PlayedStep, on_one_clock
from ddp_lessons.trace import clock_offsets_ns

UNNOTED_S = 0.003


class NestedStep(PlayedStep):
    """
    Note each piece of compute twice: whole, and in the two halves that it is made of.

    So do profilers: an operation lies in the one that has called it. And before each piece there is
    a moment that nobody notes, such as Python's own.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.inner = []

    def _compute(self, label, seconds):
        time.sleep(UNNOTED_S)
        halves = [super(NestedStep, self)._compute(label, seconds / 2) for _ in range(2)]
        self.inner += halves
        return halves[0][:2] + halves[1][2:]


def gathered(value):
    """
    Return what each rank has, in rank order. Collective: every rank of the case must call it.
    """
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def gathered_tracks(own):
    """
    Return the spans of all ranks on one clock, without labels. Collective, as `gathered`.
    """
    offsets_s = [offset_ns / 1e9 for offset_ns in clock_offsets_ns()]
    tracks = on_one_clock(gathered(own), offsets_s)
    return [[span[:3] for span in track] for track in tracks]


def number_of(value):
    """
    Return a number as a float, also if it is a tensor of one; None if it is none.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def numbers_of(values, num):
    """
    Return so many numbers as floats, from a list, a tuple or a tensor; None if it is none of them.
    """
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if not isinstance(values, list | tuple) or len(values) != num:
        return None
    numbers = [number_of(value) for value in values]
    return None if None in numbers else numbers


def in_ms(value):
    """
    Return seconds in words: milliseconds with three digits behind the point.
    """
    return f"{1e3 * value:.3f} ms"
