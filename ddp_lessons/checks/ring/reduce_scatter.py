"""
Task 03.1: ring reduce-scatter.

On each rank: `_act`. In the kernel: the rest.
"""

from functools import partial
from itertools import product

import torch

from ddp_lessons.checks.kit import VALUES, Expected, Mistake, Task
from ddp_lessons.checks.kit.fixtures.message_rounds import sending_device
from ddp_lessons.checks.kit.fixtures.watched_calls import EARLY_USE, call_watched
from ddp_lessons.checks.ring.rings import (
    RING_WORDS,
    bytes_of_chunks,
    cases_of_chunks,
    chunks_of,
    draw_ring,
    longest_chunk_bytes,
    ring_costs,
)


def _act(context, reduce_scatter):
    device = sending_device(context)
    return call_watched(
        context,
        reduce_scatter,
        lambda case: [[chunk.to(device) for chunk in chunks_of(case, context.rank)]],
    )


def _sum(parts, times=None):
    """
    Return the sum of the parts of all ranks. Part r counts `times[r]` times; None: once each.
    """
    exact = torch.float64 if parts[0].is_floating_point() else torch.int64
    table = torch.stack([part.to(exact) for part in parts])
    return (torch.tensor(times or [1] * len(parts))[:, None] * table).sum(0).to(parts[0].dtype)


def _parts(case, chunk):
    return [chunks_of(case, rank)[chunk] for rank in range(case.world_size)]


def _sums_with(times, case, rank):
    """
    Return all sums of a rank's chunk that count each rank's part by one of the numbers `times`.
    """
    each = product(times, repeat=case.world_size)
    return [_sum(_parts(case, rank), counts) for counts in each]


def _sums_of_mixed(case, rank):
    """
    Return every sum of one chunk from each rank, whichever chunk that is; [] if lengths differ.
    """
    if len({*case["lengths"]}) > 1:
        return []
    return [_sum(parts) for parts in product(*(chunks_of(case, r) for r in range(case.world_size)))]


def _others_bytes(case, rank):
    return bytes_of_chunks(case, [chunk for chunk in range(case.world_size) if chunk != rank])


_SENT_DTYPE, _COSTS = ring_costs(
    lambda case: case.world_size - 1,
    _others_bytes,
    longest_chunk_bytes,
    "w - 1 steps, and one message a step: send a chunk whole, and let it end at home.",
)

reduce_scatter = Task(
    number="03.1",
    name="reduce_scatter",
    twice=True,
    cases=cases_of_chunks,
    act=_act,
    ok="w - 1 messages a rank, every chunk but its own",
    draw=lambda case_result: draw_ring(case_result, ["grow"]),
    hints=(
        "Follow one chunk only: it visits every rank, takes that rank's numbers along, and comes "
        "home last. w of them are on their way at the same time, each one rank behind the next.",
        "Chunk r is finished on rank r, so it starts at rank r + 1. In the first step rank r "
        "sends its own numbers of chunk r - 1.",
        "What leaves in the next step is what has just arrived, plus this rank's own numbers of "
        "that chunk. After step 0 that is chunk r - 2, then r - 3, and so on round the circle.",
        "passing = chunks[rank - 1].clone() before the loop; in step s, receive the numbers of "
        "chunk (rank - 2 - s) % world_size; then passing = arrived + chunks[that one].",
    ),
    expected=Expected(lambda case, rank: _sum(_parts(case, rank))),
    mistakes=(
        EARLY_USE,
        _SENT_DTYPE,
        Mistake(
            "wrong-chunk",
            "Ask where a chunk must start to end at home: w - 1 steps are one less than the round.",
            "This is the sum of another rank's chunk.",
            gives=lambda case, rank: [
                _sum(_parts(case, chunk)) for chunk in range(case.world_size) if chunk != rank
            ],
        ),
        Mistake(
            "twice",
            "Each rank adds its numbers to a chunk once: also where a chunk starts, and where it "
            "ends.",
            "Numbers of some rank are in it twice.",
            gives=partial(_sums_with, (1, 2)),
        ),
        Mistake(
            "not-all",
            "Pass on the sum of what came and your own numbers, not one of them alone.",
            "Numbers of some rank are not in it.",
            gives=partial(_sums_with, (1, 2, 0)),
        ),
        Mistake(
            "mixed",
            "Add your own numbers of the very chunk that has arrived. It is the one that the left "
            "neighbour has just sent, or the right one if you run to the left.",
            "Some rank has added its numbers of another chunk.",
            gives=_sums_of_mixed,
        ),
        VALUES,
        *_COSTS,
        *RING_WORDS,
        Mistake(
            "died",
            "A message that is longer than the tensor it arrives in ends the process. Make that "
            "tensor as long as the chunk that comes, and of its dtype.",
        ),
        Mistake(
            "dtype", "The sum has the dtype of the chunks. torch.sum makes int64 of int32: use +."
        ),
        Mistake(
            "input-changed",
            "The list and its chunks are your caller's: return a new tensor, as in arrived + own.",
        ),
    ),
    allowed=("send", "recv"),
)
