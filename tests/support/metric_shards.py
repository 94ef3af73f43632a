"""
Samples that are distributed unequally over ranks, for the tests of metrics: one rank may have none.
"""

import io

import torch
from worlds import run_world


def part_of(whole, rank, world_size):
    """
    Return one rank's part of `whole`. Rank 0 has most; with three or more ranks the last has none.
    """
    num_parts = world_size - 1 if world_size > 2 else world_size
    cuts = [len(whole) * (2 * part + 1) // (2 * num_parts) for part in range(num_parts)]
    cuts[-1] = len(whole)
    starts = [0, *cuts[:-1]]
    if rank >= num_parts:
        return whole[:0]
    return whole[starts[rank] : cuts[rank]]


def samples(num=33, num_classes=4, seed=1):
    """
    Return predictions, labels and losses (num,). Class `num_classes - 1` is in none of them.
    """
    rng = torch.Generator().manual_seed(seed)
    predicted, labels = torch.randint(0, num_classes - 1, (2, num), generator=rng)
    return predicted, labels, torch.rand(num, generator=rng, dtype=torch.float64)


def packed(value):
    """
    Return a value as bytes. A tensor itself does not outlive the rank that sends it.
    """
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def run_packed(world_size, function, *args):
    """
    Run a function that returns `packed(...)` on each rank, and return the unpacked values.
    """
    results = run_world(world_size, function, *args)
    return [torch.load(io.BytesIO(result), weights_only=False) for result in results]
