"""
Steps that the checks of lesson 11 run on the ranks, and helpers that collect and read numbers.

A rank sleeps for a random time instead of computing, so that no result depends on a free core. The
checks judge by measured times, which contain every delay of a busy machine.
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
    A played step that records each piece of compute twice: as a whole, and in two halves.

    Profilers also record nested spans: an operation lies within the one that has called it. Before
    each piece there is a gap that no span covers, like the time of the Python interpreter.
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
    Return the values of all ranks, in rank order. Collective: every rank of the case must call it.
    """
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def gathered_tracks(own):
    """
    Return the spans of all ranks on one clock, without labels.

    Collective: every rank of the case must call it.
    """
    offsets_s = [offset_ns / 1e9 for offset_ns in clock_offsets_ns()]
    tracks = on_one_clock(gathered(own), offsets_s)
    return [[span[:3] for span in track] for track in tracks]


def number_of(value):
    """
    Return a number, or the number in a tensor with one element, as a float; else None.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def numbers_of(values, num):
    """
    Return a list, tuple or tensor of `num` numbers as a list of floats; else None.
    """
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if not isinstance(values, list | tuple) or len(values) != num:
        return None
    numbers = [number_of(value) for value in values]
    return None if None in numbers else numbers


def in_ms(value):
    """
    Return seconds as text: milliseconds with three decimals.
    """
    return f"{1e3 * value:.3f} ms"
